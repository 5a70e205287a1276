"""Calls in interpreters that wait on the host, with the function's modules.

A call starts an interpreter, which takes round trips and 0.1 to 0.2 s. A prepared call has that behind it: it is for
calls that are made while a run stands still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import ParamSpec, TypeVar

from midstream.hosts.host import CALL_TIMEOUT, Host, Process
from midstream.hosts.remote_hosts import is_remote
from midstream.hosts.rpc.remote_call import caller, open_waiting_call
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
        if not is_remote(host):
            return
        with self._lock:
            if (host.name, function) not in self._waiting:
                self._waiting[host.name, function] = begin_open(partial(open_waiting_call, host, function))

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
            unused, self._waiting = self._waiting, {}
        close_opened(unused.values())


def begin_open(open_process: Callable[[], Process]) -> Future[Process]:
    """Begin to start an interpreter, in a thread."""
    opened = Future[Process]()

    def start() -> None:
        try:
            opened.set_result(open_process())
        except BaseException as error:  # noqa: BLE001  what needs it starts its own interpreter, and reports
            opened.set_exception(error)

    threading.Thread(target=start, name="prepared-interpreter", daemon=True).start()
    return opened


def close_opened(interpreters: Iterable[Future[Process]]) -> None:
    """End interpreters, as soon as they have started."""
    for opened in interpreters:
        opened.add_done_callback(_end)


def _end(opened: Future[Process]) -> None:
    if opened.exception() is None:
        opened.result().close()
