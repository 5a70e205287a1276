"""Where a demo is: a directory that one process alone has. The lock is inherited by the demo's keeper, and so is held
until all that the demo started has ended."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from midstream.errors import MidstreamError
from midstream.migrate.execution.migration_directory import state_directory
from midstream_engine import records

LOCK = ".lock"
POLL = 0.2  # seconds between two tries
ENDING_TIMEOUT = 300.0  # seconds in which a demo that is ending has to have ended
LONGEST = 4096  # bytes of a lock file that are read


class Place:
    """A directory and its lock, which is held until ``release`` and until all that inherited it have ended."""

    def __init__(self, root: Path, descriptor: int, *, ending: bool = False):
        self.root, self.descriptor = root, descriptor
        self._write(ending=ending)

    def _write(self, *, ending: bool) -> None:
        state = {"ending": ending, "process": records.this_process().to_json()}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(state).encode(), 0)

    def ending(self) -> None:
        """From now on others wait for the lock; whoever finds it held otherwise takes another directory."""
        self._write(ending=True)

    def release(self) -> None:
        os.close(self.descriptor)


def base() -> Path:
    """The usual directory."""
    return (state_directory() / "demo").absolute()


def take(say: Callable[[str], None]) -> Place:
    """A directory for this demo: the usual one. Where its last demo is still ending, that is waited for; where one is
    open, another directory is taken. MidstreamError where the last demo does not end."""
    for number in itertools.count(1):
        root = base() if number == 1 else base().with_name(f"demo-{number}")
        found = _try(root)
        if found is None and not is_open(root):
            say(f"the last demo in {root} is still ending; waiting for it")
            found = _wait(root)
        if found is not None:
            return found
        say(f"another demo is open in {root}; this one takes a directory of its own")
    raise AssertionError("there is always a next number")


def take_at(root: Path) -> Place:
    """A directory that nobody else knows."""
    found = _try(root)
    assert found is not None, root
    return found


def _wait(root: Path) -> Place | None:
    """The lock once it is free; None where another demo was quicker."""
    deadline = time.monotonic() + ENDING_TIMEOUT
    while time.monotonic() < deadline:
        found = _try(root)
        if found is not None or is_open(root):
            return found
        time.sleep(POLL)
    raise MidstreamError(
        f"the last demo in {root} does not end", f"cat {root / 'keeper.log'}: what it waits for; then start again"
    )


def _try(root: Path) -> Place | None:
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Place(root, descriptor)


def is_open(root: Path) -> bool:
    """Whether the process that took the directory runs, and is not ending."""
    try:
        state = records.parse_json(records.read_bytes(str(root / LOCK), LONGEST), str(root / LOCK))
        process = records.ProcessIdentity.from_json(state["process"])
        return not state["ending"] and records.is_running(process)
    except (OSError, records.RecordError, KeyError, TypeError):  # it is being written: the next look tells
        return False
