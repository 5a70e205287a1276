"""A bucket where a copy expects a host: it answers the same functions and programs (`midstream.remote.gcs`).

They run on this machine, between the bucket and whatever the other end is; or, where ``via`` has an identity of its own
(a machine in Google's cloud), on that host, and the bytes do not touch this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.errors import MidstreamError, RemoteError
from midstream.fleet.fleet import LocalHost
from midstream.hosts.host import ANSWER_LIMIT, Completed, Host, Process
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_call import call_function
from midstream.stores.bucket_access import Access

SCHEME = "gs://"
ANSWERED = {
    "verify.objects.describe": "gcs.tree.describe",
    "verify.objects.missing": "gcs.tree.missing",
    "verify.objects.digests": "gcs.tree.digests",
    "verify.objects.check": "gcs.tree.check",
    "copy.session.serve": "gcs.session.serve",
    "copy.disk_receiver.receive": "gcs.receiver.receive",
    "copy.sender.send": "gcs.sender.send",
}


class BucketHost:
    """The Host of ``gs://`` places. ``python``: on ``via``, an interpreter that has google-cloud-storage."""

    config = None
    root = ""  # no other trees are looked through for objects

    def __init__(self, url: str, access: Access | None = None, *, via: Host | None = None, python: str = ""):
        if not url.startswith(SCHEME):
            raise MidstreamError(f"{url!r} names no bucket", "write gs://BUCKET/PREFIX")
        self.name = SCHEME + url.removeprefix(SCHEME).split("/")[0]
        self.access = access or Access()
        self.via = via
        self._machine: Host = via or LocalMachine(self.name, LocalHost())
        self.far_python = python or (via.far_python if via else sys.executable)

    def translated(self, function: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """What is run for a function or program of a tree."""
        return ANSWERED[function], {**arguments, "access": self.access.to_json()}

    def connect(self) -> None:
        """Nothing to do: each request is a connection of its own, or a living one of the client's."""

    def dial(self) -> Host:
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        """A command beside the bucket's client."""
        return self._machine.run(argv, stdin=stdin, env=env, timeout=timeout, limit=limit, what=what)

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        return self._machine.open(argv, env=env, window=window)

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        """MidstreamError, with what mends it, where the bucket refuses."""
        function, arguments = self.translated(function, arguments)
        if self.via is not None:
            return call_function(self.via, self.far_python, function, arguments, timeout)
        import importlib

        from midstream.remote.gcs.client import GcsError

        module, _, name = function.rpartition(".")
        try:
            return getattr(importlib.import_module(f"midstream.remote.{module}"), name)(**arguments)
        except GcsError as error:
            raise MidstreamError(error.message, error.hint) from None
        except ValueError as error:
            raise RemoteError(str(error), type(error).__name__) from None

    def why_not(self, url: str) -> tuple[str, str]:
        """Why the bucket cannot be listed from where its client runs, and what mends it; empty where it can."""
        arguments = {"url": url, "access": self.access.to_json()}
        if self.via is not None:
            try:
                found = call_function(self.via, self.far_python, "gcs.client.able", arguments, 60.0)
            except RemoteError as error:
                return error.message, error.hint
        else:
            from midstream.remote.gcs.client import able

            found = able(**arguments)
        return found["why"], found["hint"]

    def close(self) -> None:
        """Nothing to drop."""
