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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midstream.migrate import model
from midstream.migrate.model import Event
from midstream_engine import records


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
            records.append(self._descriptor, line.line().encode() + b"\n")
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


@dataclass(frozen=True)
class Outcome:
    """How a migration stands by its journal alone, whoever holds it."""

    outcome: str = ""  # of the newest result; empty while there is none since it was last begun
    exit_code: int = 0
    phase: str = model.PLAN  # the newest that was begun
    error: str = ""
    finished: bool = False  # the source is retired

    @property
    def ended(self) -> bool:
        """Nothing is left to do."""
        return self.outcome in (model.COMPLETED, model.ROLLED_BACK, model.MOVED_ON)


def outcome(events: Iterable[Event]) -> Outcome:
    """What the events say in the end."""
    now = Outcome()
    for event in events:
        if event.event == "phase":
            now = replace(now, phase=event.phase)
            if (event.phase, event.state) == (model.FINISH, model.DONE):
                now = replace(now, finished=True)
            if event.state == model.FAILED:
                now = replace(now, error=event.message)
        elif event.event == "result":
            now = replace(
                now,
                outcome=str(event.detail.get("outcome", "")),
                exit_code=int(event.detail.get("exit_code", 1)),
                error=event.message if not event.detail.get("ok") else "",
            )
        elif event.event == "note" and event.state == "resumed" and not now.ended:
            now = replace(now, outcome="")
    return now


class JournalReader:
    """A journal that is looked at again and again: what was read is not read again."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0
        self._events: list[Event] = []

    def events(self) -> tuple[Event, ...]:
        """All whole lines so far."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._events += [event for line in whole.splitlines() if (event := _parse(line)) is not None]
        return tuple(self._events)


def _parse(line: bytes) -> Event | None:
    try:
        return Event.from_json(json.loads(line))
    except (ValueError, TypeError, AttributeError):
        return None


def follow_events(path: Path, *, until: threading.Event, poll: float = 0.1, offset: int = 0) -> Iterator[Event]:
    """Whole lines as they come, from byte ``offset`` on; ends when ``until`` is set and everything was read."""
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
