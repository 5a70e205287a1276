"""A bucket as the host at one end of a copy, for `midstream_host.bucket`.

The functions and programs run on this machine, between the bucket and the host at the other end. With ``via``, a
machine that has an identity of its own for the bucket, they run there, or in its container, and the bytes do not pass
through this machine.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from midstream.errors import ConnectionLostError, RemoteError
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.container_host import machine_of
from midstream.hosts.host import ANSWER_LIMIT, CALL_TIMEOUT, Completed, Host, P, Process, R
from midstream.hosts.local_forks import CLIENT_FORKS
from midstream.hosts.local_host import LocalHost
from midstream.hosts.rpc import remote_call
from midstream.stores.bucket import app_errors
from midstream.stores.bucket_access import Access
from midstream_core.json_types import JsonValue
from midstream_core.object_store.urls import split_url
from midstream_host.bucket import access_problem, tree
from midstream_host.bucket import receiver as bucket_receiver
from midstream_host.bucket import sender as bucket_sender
from midstream_host.bucket import session as bucket_session
from midstream_host.copy import disk_receiver, sender, session
from midstream_host.verify import objects

CHECK_TIMEOUT = 60.0  # seconds for one listing, on the host that has the client

# Functions and programs for a tree on a disk -> those for a tree in a bucket.
BUCKET_FUNCTIONS: dict[Callable[..., object], Callable[..., object]] = {
    objects.describe: tree.describe,
    objects.missing: tree.missing,
    objects.digests: tree.digests,
    objects.check: tree.check,
    session.serve: bucket_session.serve,
    disk_receiver.receive: bucket_receiver.receive,
    sender.send: bucket_sender.send,
}


class BucketHost:
    """The `Host` of a bucket.

    ``python``: an interpreter on ``via`` that has the packages of its client.
    """

    config = None
    root = ""  # there are no other trees whose objects could be reused

    def __init__(self, url: str, access: Access | None = None, *, via: Host | None = None, python: str = "") -> None:
        with app_errors():
            scheme, bucket, _ = split_url(url)
        self.name = scheme + bucket
        self.access = access or Access()
        self.via = via
        self._machine: Host = via or LocalHost(self.name, LocalHostConfig())
        self.remote_python = python or (via.remote_python if via else sys.executable)

    def start(self, program: Callable[P, object], window: int | None = None) -> Callable[P, Process]:
        """Return the bucket's program for ``program``, as `start_program` does.

        ``program`` is a program of a tree.
        """
        signature = inspect.signature(program)

        def start(*positional: P.args, **named: P.kwargs) -> Process:
            arguments = signature.bind(*positional, **named).arguments
            return remote_call.start_program(self, BUCKET_FUNCTIONS[program], window=window)(
                **arguments, access=self.access.to_json()
            )

        return start

    def runs_on(self, host: Host) -> bool:
        """Return whether the bucket's client runs on the machine of ``host``."""
        return host is machine_of(self.via) if self.via is not None else isinstance(host, LocalHost)

    def start_own(self, program: Callable[..., object]) -> Callable[..., Process]:
        """Return a program of the bucket's own, as `start_program` does.

        The argument ``access`` is added. Errors of libraries are ConnectionLostError.
        """

        def start(**named: object) -> Process:
            try:
                return remote_call.start_program(self, program)(**named, access=self.access.to_json())
            except (OSError, EOFError) as error:
                raise ConnectionLostError(f"{self.name}: the connection broke", "run it again to continue") from error

        return start

    def prepare(self) -> None:
        """Start what programs on this machine need. Returns at once."""
        if self.via is None and self.remote_python == sys.executable:
            scheme, _, _ = split_url(self.name)
            CLIENT_FORKS.prepare(scheme)

    def connect(self) -> None:
        """Do nothing: the client connects with the first request."""

    def with_new_connection(self) -> Host:
        return self

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        return self._machine.run(argv, stdin=stdin, env=env, timeout=timeout, limit=limit, what=what)

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        return self._machine.open(argv, env=env, window=window)

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        """Return the bucket's function for a function of a tree, as `Host.call` does.

        The returned function raises MidstreamError, with a hint, if the service rejects a request, and RemoteError for
        other failures.
        """
        signature = inspect.signature(function)

        def call(*positional: Any, **named: Any) -> Any:
            arguments = signature.bind(*positional, **named).arguments
            return self._run_for(function, {**arguments, "access": self.access.to_json()}, timeout)

        return call

    def _run_for(self, function: Callable[..., object], arguments: dict[str, JsonValue], timeout: float | None) -> Any:
        if self.via is not None:
            return remote_call.caller(self.via, BUCKET_FUNCTIONS[function], timeout, self.remote_python)(**arguments)
        try:
            with app_errors():
                return BUCKET_FUNCTIONS[function](**arguments)
        except ValueError as error:
            raise RemoteError(str(error), type(error).__name__) from None

    def access_problem(self, url: str) -> tuple[str, str]:
        """Return why the client cannot list objects below ``url``, and a hint; else empty."""
        able = access_problem.able
        if self.via is not None:
            able = remote_call.caller(self.via, able, CHECK_TIMEOUT, self.remote_python)
        try:
            problem = able(url=url, access=self.access.to_json())
        except RemoteError as error:
            return error.message, error.hint
        return problem.why, problem.hint

    def close(self) -> None:
        """Do nothing: the connections belong to the client."""
