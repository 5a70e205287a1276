"""Provider of TPU slices on Compute Engine."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from threading import Event
from typing import Any

from midstream.fleet.gce_target import ComputeTarget
from midstream.fleet.quantities import parse_duration
from midstream.fleet.slice_target import SliceTarget
from midstream.providers import creation, deletion, slice_service
from midstream.providers.gce import access as machine_access
from midstream.providers.gce import lookup as machine_lookup
from midstream.providers.gce.client import ENDPOINT, ComputeClients
from midstream.providers.gce.creation import ComputeService
from midstream.providers.gce.errors import explained
from midstream.providers.google_rest import loopback
from midstream.providers.provider import Inventory, Progress, ProviderError, Slice
from midstream.providers.ssh_access import identity, key_line, public_key


class ComputeProvider:
    """The Provider of targets of type ``gce``. Opens its clients at the first call."""

    def __init__(self) -> None:
        self._opened: ComputeClients | None = None

    @property
    def _clients(self) -> ComputeClients:
        if self._opened is None or self._opened.address != loopback(ENDPOINT):
            with explained("the Compute Engine API cannot be used"):
                self._opened = ComputeClients()
        return self._opened

    def inventory(self, zones: Sequence[tuple[str, str]]) -> Inventory:
        try:
            clients = self._clients
        except ProviderError as error:
            return Inventory(problems=(str(error),))
        return machine_lookup.inventory(clients, zones)

    def find(self, name: str, target: SliceTarget) -> Slice | None:
        service = self._service(name, target)
        return slice_service.find_patiently(service.find)

    def create(self, name: str, target: SliceTarget, progress: Progress, cancel: Event | None = None) -> Slice:
        assert isinstance(target, ComputeTarget)
        keys = ""
        if not target.os_login:
            key = identity(target, progress, create=True)
            keys = key_line(target.user or getpass.getuser(), public_key(key)) if key else ""
        service = self._service(name, target, keys)
        return creation.create(service, name, parse_duration(target.valid_until), progress, cancel)

    def delete(self, path: str, progress: Progress) -> None:
        service = ComputeService(self._clients, path, None, path)
        deletion.delete_existing(service, progress)

    def grant_access(
        self, name: str, target: SliceTarget, slice_: Slice, progress: Progress, *, touch: bool
    ) -> dict[str, dict[str, Any]]:
        assert isinstance(target, ComputeTarget)
        return machine_access.grant_access(self._clients, name, target, slice_, progress, touch=touch)

    def _service(self, name: str, target: SliceTarget, ssh_keys: str = "") -> ComputeService:
        assert isinstance(target, ComputeTarget)
        path = f"{target.project}/{target.zone}/{target.name or name}"
        return ComputeService(self._clients, name, target, path, ssh_keys)
