"""Interpreters that start at a copy's target while the source's manifest is read.

A start takes round trips and 0.05 s. Each interpreter then waits for its program, which is sent as it always is.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from midstream.hosts.host import Host, Process
from midstream.hosts.prepared_calls import begin_open, close_opened
from midstream.hosts.remote_hosts import is_remote
from midstream.hosts.rpc.remote_call import open_interpreter
from midstream_host.copy import session

PROGRAMS = 2  # of a copy at its target: the session, and the receiver of its first stream


class WaitingInterpreters:
    """The interpreters of one host, for programs of `midstream_host.copy`."""

    def __init__(self, host: Host, count: int) -> None:
        self._lock = threading.Lock()
        self._free = [begin_open(partial(open_interpreter, host, session.serve)) for _ in range(count)]

    def take(self) -> Process | None:
        """Return an interpreter that no program has.

        None if there is none, or if it could not be started.
        """
        with self._lock:
            opened = self._free.pop(0) if self._free else None
        return opened.result() if opened is not None and opened.exception() is None else None

    def close(self) -> None:
        """End the interpreters that are left, as soon as they have started. Idempotent."""
        with self._lock:
            unused, self._free = self._free, []
        close_opened(unused)


@contextmanager
def waiting_interpreters(host: Host) -> Generator[WaitingInterpreters]:
    """Start the interpreters of a copy to ``host``; end those that are not used.

    On this machine a start takes no time, and in a bucket none is needed.
    """
    interpreters = WaitingInterpreters(host, PROGRAMS if is_remote(host) else 0)
    try:
        yield interpreters
    finally:
        interpreters.close()
