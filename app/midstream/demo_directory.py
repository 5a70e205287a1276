"""The directory of a demo, locked by one process.

The cleanup process inherits the lock, which is therefore released after the last process of the demo has ended.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from midstream.errors import MidstreamError
from midstream.state_directory import state_directory
from midstream_core import records
from midstream_core.json_types import object_or_empty

LOCK = ".lock"
POLL_INTERVAL = 0.2  # seconds between attempts to lock
ENDING_TIMEOUT = 300.0  # seconds to wait for a demo that is ending
MAX_LOCK_BYTES = 4096  # bytes read from a lock file


class DemoDirectory:
    """A directory and its lock.

    The lock is held until ``release`` and until every process that inherited it has exited.
    """

    def __init__(self, root: Path, descriptor: int, *, ending: bool = False) -> None:
        self.root, self.descriptor = root, descriptor
        self._write(ending=ending)

    def _write(self, *, ending: bool) -> None:
        state = {"ending": ending, "process": records.this_process().to_json()}
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps(state).encode(), 0)

    def ending(self) -> None:
        """Mark the demo as ending.

        A new demo waits for the lock instead of using another directory.
        """
        self._write(ending=True)

    def release(self) -> None:
        os.close(self.descriptor)


def default_root() -> Path:
    """Return the directory of the first demo."""
    return (state_directory() / "demo").absolute()


def claim(report: Callable[[str], None]) -> DemoDirectory:
    """Lock a directory for this demo.

    Waits for a demo that is ending in the default directory; uses another directory beside an open demo.

    Raises:
        MidstreamError: The last demo does not end.
    """
    for number in itertools.count(1):
        root = default_root() if number == 1 else default_root().with_name(f"demo-{number}")
        directory = _try(root)
        if directory is None and not is_open(root):
            report(f"waiting for the last demo in {root} to end")
            directory = _wait(root)
        if directory is not None:
            return directory
        report(f"another demo is open in {root}; this one uses its own directory")
    raise AssertionError("there is always a next number")


def claim_at(root: Path) -> DemoDirectory:
    """Lock a directory with a random name."""
    directory = _try(root)
    assert directory is not None, root
    return directory


def _wait(root: Path) -> DemoDirectory | None:
    """Wait for the lock; None if another demo got it first."""
    deadline = time.monotonic() + ENDING_TIMEOUT
    while time.monotonic() < deadline:
        directory = _try(root)
        if directory is not None or is_open(root):
            return directory
        time.sleep(POLL_INTERVAL)
    raise MidstreamError(f"the last demo in {root} does not end", f"see {root / 'cleanup.log'}, then start again")


def _try(root: Path) -> DemoDirectory | None:
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return DemoDirectory(root, descriptor)


def is_open(root: Path) -> bool:
    """Return True if the process that locked the directory runs and is not ending."""
    try:
        content = records.read_bytes(str(root / LOCK), MAX_LOCK_BYTES)
        state = object_or_empty(records.parse_json(content, str(root / LOCK)))
        process = records.ProcessIdentity.from_json(state["process"])
        return not state["ending"] and records.is_running(process)
    except (OSError, records.RecordError, KeyError, TypeError):  # being written: the next poll reads it
        return False
