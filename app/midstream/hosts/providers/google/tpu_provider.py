"""Cloud TPU behind the seam."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from midstream.fleet.fleet import TpuTarget
from midstream.hosts.providers import interface
from midstream.hosts.providers.google import access, nodes
from midstream.hosts.providers.google import create as creation
from midstream.hosts.providers.google.client import ENDPOINT, loopback, open_client
from midstream.hosts.providers.google.errors import explained
from midstream.hosts.providers.interface import Inventory, ProviderError, Say, Slice

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient


class GoogleTpus:
    """The Provider of targets of type ``tpu``. One client, made at the first call, for as long as its server stays."""

    def __init__(self) -> None:
        self._opened: tuple[str, TpuClient] | None = None

    @property
    def _client(self) -> TpuClient:
        server = loopback(ENDPOINT)
        if self._opened is None or self._opened[0] != server:
            with explained("the Cloud TPU API cannot be used"):
                self._opened = server, open_client()
        return self._opened[1]

    def inventory(self, places: Sequence[tuple[str, str]]) -> Inventory:
        try:
            client = self._client
        except ProviderError as error:
            return Inventory(problems=(str(error),))
        return nodes.inventory(client, places)

    def find(self, name: str, target: TpuTarget) -> Slice | None:
        return nodes.find(self._client, target.project, target.zone, target.name or name)

    def create(self, name: str, target: TpuTarget, say: Say, cancel: Event | None = None) -> Slice:
        return creation.create(self._client, name, target, say, cancel)

    def delete(self, place: str, say: Say) -> None:
        project, zone, name = nodes.place_of(place)
        found = nodes.find(self._client, project, zone, name)
        if found is None:
            raise ProviderError(f"{place} is not there", "midstream --status lists what is", interface.ABSENT)
        creation.delete(self._client, found, say)

    def reach(self, name: str, target: TpuTarget, found: Slice, say: Say, *, touch: bool) -> dict[str, dict[str, Any]]:
        return access.reach(self._client, name, target, found, say, touch=touch)
