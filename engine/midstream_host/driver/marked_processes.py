"""Processes of a trainer, found by a mark in their environment.

Every child inherits the mark.

A launcher may end before its workers, and a killed driver cannot end its own children. The mark finds them in both
cases, so that none of an attempt computes after its epoch has changed hands.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Callable, List, Set

from midstream_core import records

MARK = "MIDSTREAM_TRAINER"  # environment variable: the directory of the attempt
POLL_INTERVAL = 0.02  # seconds


def marked(mark: str) -> Set[int]:
    """Return the pids of this user's processes with the mark, except the caller's."""
    entry = (MARK + "=" + mark).encode()
    pids: Set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/{}/environ".format(name), "rb") as file:
                environment = file.read().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if entry in environment and records.identify(int(name)) is not None:
            pids.add(int(name))
    return pids


def end_marked(mark: str, timeout: float = 30.0) -> List[int]:
    """Kill marked processes; return those that remain after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        remaining = marked(mark)
        if not remaining or time.monotonic() > deadline:
            return sorted(remaining)
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(POLL_INTERVAL)


def watch_driver(mark: str, afterwards: Callable[[], None]) -> int:
    """Start a process that kills all marked ones at the caller's exit; return its pid.

    The process has the reading end of a pipe whose other end only the caller has, so that any end of the caller counts.
    Once all are killed it calls ``afterwards``.
    """
    reading, writing = os.pipe()  # not inherited by programs that the caller starts
    child = os.fork()
    if child:
        os.close(reading)
        os.set_inheritable(writing, False)
        return child
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        os.close(writing)
        os.read(reading, 1)
        end_marked(mark)
        afterwards()
    finally:
        sys.stdout.flush()
        os._exit(0)
