"""Calls in interpreters that wait on the host, with the function's modules.

A call starts an interpreter, which takes round trips and 0.1 to 0.2 s. A prepared call has that behind it: it is for
calls that are made while a run stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from midstream.hosts.host import CALL_TIMEOUT, Host, Process
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.rpc.remote_call import caller, open_waiting_call
from midstream.hosts.ssh.ssh_host import SshHost
from midstream_host.declarations import declaration_of

P = ParamSpec("P")
R = TypeVar("R")


class PreparedCalls:
    """Waiting interpreters, at most one for each host and function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, Callable[..., object]], Future[Process]] = {}

    def prepare(self, host: Host, function: Callable[..., object]) -> None:
        """Begin to start an interpreter for a later call of ``function``.

        Does not wait. Where it cannot be started, the call starts its own. On this machine a start takes no time.

        Raises:
            ValueError: The function may not be repeated: the call may find that the interpreter has ended in between.
        """
        declaration = declaration_of(function)
        if declaration is None or not declaration.repeatable:
            raise ValueError(f"{function!r} may not be repeated")
        if not isinstance(host, SshHost | KubernetesHost):
            return
        opened = Future[Process]()
        with self._lock:
            if (host.name, function) in self._waiting:
                return
            self._waiting[host.name, function] = opened
        threading.Thread(target=_open, args=(opened, host, function), name="prepared-call", daemon=True).start()

    def call(self, host: Host, function: Callable[P, R], *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        """Return ``function`` so that it runs on ``host``, as `Host.call` does.

        The first call after `prepare` runs in the waiting interpreter. Where that has ended, it starts another.
        """
        with self._lock:
            opened = self._waiting.pop((host.name, function), None)
        if opened is None or opened.exception() is not None:
            return host.call(function, timeout=timeout)
        return caller(host, function, timeout, waiting=opened.result())

    def close(self) -> None:
        """End the interpreters that were not used, once they have started.

        Idempotent.
        """
        with self._lock:
            left, self._waiting = self._waiting, {}
        for opened in left.values():
            opened.add_done_callback(_end)


def _open(opened: Future[Process], host: Host, function: Callable[..., object]) -> None:
    try:
        opened.set_result(open_waiting_call(host, function))
    except BaseException as error:  # noqa: BLE001  the call starts its own interpreter, and reports
        opened.set_exception(error)


def _end(opened: Future[Process]) -> None:
    if opened.exception() is None:
        opened.result().close()
