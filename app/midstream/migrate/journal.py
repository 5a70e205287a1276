"""What a migration wrote down, line by line, before and after everything it did.

`journal.jsonl` is the only memory of a migration: a process that is killed leaves nothing else behind, and the one
that continues it reads what was done here. Lines are appended and fsynced; a torn last line is a line that was
never written.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from midstream.migrate.model import Event


class Journal:
    """One migration's journal, for the process that carries it out. Threads may write at once."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}
        for event in read_events(path):
            if event.event == "fact":
                self._facts.update(event.detail)
        # A torn last line would swallow the next one.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def write(self, event: str, *, phase: str = "", state: str = "", message: str = "", **detail: Any) -> Event:
        """Append one line; it is on the disk when this returns. Progress lines are many, and not waited for."""
        line = Event(event, time.time(), phase, state, message, detail)
        with self._lock:
            os.write(self._descriptor, line.line().encode() + b"\n")
            if state != "progress":
                os.fsync(self._descriptor)
        return line

    def fact(self, **facts: Any) -> None:
        """Write down something that a continued migration must know: what was sealed, which attempt was started."""
        self.write("fact", **facts)
        self._facts.update(facts)

    def known(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, default)

    def close(self) -> None:
        os.close(self._descriptor)


def read_events(path: Path) -> list[Event]:
    """All whole lines. A line that is torn (its writer was killed there) is left out."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    return [event for line in data.splitlines() if (event := _parse(line)) is not None]


def _parse(line: bytes) -> Event | None:
    try:
        return Event.from_json(json.loads(line))
    except (ValueError, TypeError, AttributeError):
        return None


def follow_events(path: Path, *, until: threading.Event, poll: float = 0.1) -> Iterator[Event]:
    """Whole lines as they come, from the first one on; ends when ``until`` is set and everything was read."""
    offset = 0
    while True:
        ending = until.is_set()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except FileNotFoundError:
            data = b""
        whole = data[: data.rfind(b"\n") + 1]
        offset += len(whole)
        for line in whole.splitlines():
            event = _parse(line)
            if event is not None:
                yield event
        if ending:
            return
        until.wait(poll)
