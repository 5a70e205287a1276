"""Provider of Cloud TPU slices."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING

from midstream.fleet.quantities import parse_duration
from midstream.fleet.slice_target import SliceTarget
from midstream.fleet.tpu_target import TpuTarget
from midstream.providers import creation, deletion
from midstream.providers.google_errors import explained
from midstream.providers.google_rest import loopback
from midstream.providers.provider import Inventory, Progress, ProviderError, Slice
from midstream.providers.tpu import access as worker_access
from midstream.providers.tpu import lookup as slice_lookup
from midstream.providers.tpu.client import ENDPOINT, open_client
from midstream.providers.tpu.service import TpuService
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient


class TpuProvider:
    """The Provider of targets of type ``tpu``. Opens its client at the first call."""

    def __init__(self) -> None:
        self._opened: tuple[str, TpuClient] | None = None

    @property
    def _client(self) -> TpuClient:
        server = loopback(ENDPOINT)
        if self._opened is None or self._opened[0] != server:
            with explained("the Cloud TPU API cannot be used"):
                self._opened = server, open_client()
        return self._opened[1]

    def inventory(self, zones: Sequence[tuple[str, str]]) -> Inventory:
        try:
            client = self._client
        except ProviderError as error:
            return Inventory(problems=(str(error),))
        return slice_lookup.inventory(client, zones)

    def find(self, name: str, target: SliceTarget) -> Slice | None:
        return slice_lookup.find(self._client, target.project, target.zone, target.name or name)

    def create(self, name: str, target: SliceTarget, progress: Progress, cancel: Event | None = None) -> Slice:
        assert isinstance(target, TpuTarget)
        path = f"{target.project}/{target.zone}/{target.name or name}"
        service = TpuService(self._client, name, target, path)
        return creation.create(service, name, parse_duration(target.valid_until), progress, cancel)

    def delete(self, path: str, progress: Progress) -> None:
        service = TpuService(self._client, path, None, path)
        deletion.delete_existing(service, progress)

    def grant_access(
        self, name: str, target: SliceTarget, slice_: Slice, progress: Progress, *, touch: bool
    ) -> dict[str, dict[str, JsonValue]]:
        return worker_access.grant_access(self._client, name, target, slice_, progress, touch=touch)
