"""Clients of the Compute Engine API.

``MIDSTREAM_COMPUTE_ENDPOINT=127.0.0.1:PORT`` names a simulated service on this machine. Requests to it have neither
encryption nor credentials, so only loopback addresses are accepted.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from midstream.errors import UsageError
from midstream.providers.google_rest import loopback
from midstream.providers.service_types import Message

ENDPOINT = "MIDSTREAM_COMPUTE_ENDPOINT"
CALL_TIMEOUT = 30.0  # seconds


class ComputeClients:
    """One client for each kind of resource, opened at its first use.

    Calls raise Google's own errors.
    """

    def __init__(self) -> None:
        try:
            from google.cloud import compute_v1
        except ImportError as error:
            raise UsageError(f"google-cloud-compute cannot be imported: {error}", "install midstream again") from error
        self._library, self.address = compute_v1, loopback(ENDPOINT)

    @cached_property
    def instances(self) -> Message:
        return self._open("Instances")

    @cached_property
    def groups(self) -> Message:
        return self._open("InstanceGroupManagers")

    @cached_property
    def templates(self) -> Message:
        return self._open("InstanceTemplates")

    @cached_property
    def policies(self) -> Message:
        return self._open("ResourcePolicies")

    @cached_property
    def projects(self) -> Message:
        return self._open("Projects")

    def operations(self, scope: str) -> Message:
        """Return the client of the operations of ``zone``, ``region`` or ``global``."""
        opened = self.__dict__.setdefault("_operations", {})
        if scope not in opened:
            opened[scope] = self._open(f"{scope.capitalize()}Operations")
        return opened[scope]

    def _open(self, kind: str) -> object:
        client = getattr(self._library, f"{kind}Client")
        if not self.address:
            return client()
        from google.auth.credentials import AnonymousCredentials

        transport = client.get_transport_class("rest")
        return client(transport=transport(host=self.address, credentials=AnonymousCredentials(), url_scheme="http"))


def call(method: Message, **request: Any) -> Message:
    """Call a method of a client once, without the retries of Google's library."""
    return method(request=request, retry=None, timeout=CALL_TIMEOUT)


def region_of(zone: str) -> str:
    """Return the region of a zone: ``us-central1`` of ``us-central1-a``."""
    return zone.rpartition("-")[0] or zone
