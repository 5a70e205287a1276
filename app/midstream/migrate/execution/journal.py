"""What a migration wrote down, line by line, before and after everything it did.

`journal.jsonl` is enough to go on with a migration: its first lines hold the plan and the fleet file, the others what
was done. Lines are appended and fsynced. A line that cannot be read is counted, never guessed at: what it may have said
is established again from the hosts (``journal_recovery.py``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midstream.errors import Exit, MidstreamError
from midstream.migrate import model
from midstream.migrate.model import Event
from midstream_engine import json_shapes, records

PLAN_LINE, FLEET_LINE = "plan", "fleet"  # the events that hold the plan and the fleet file's text
HEADER = (PLAN_LINE, FLEET_LINE)
LOST = "journal_lost"  # in a journal that was missing or empty: nothing is known of what was done before
REESTABLISHED = "reestablished"  # the fact that closes a damaged part: what it may have said is known again


@dataclass(frozen=True)
class _Sealed:
    step: int
    checkpoint: str = ""
    root_digest: str = ""
    attempt: int = 0


@dataclass(frozen=True)
class _Rehearsal:
    name: str
    step: int
    root_digest: str


@dataclass(frozen=True)
class _Progress:
    bytes_done: int
    bytes_total: int
    what: str = ""
    bytes_per_second: float = 0.0


@dataclass(frozen=True)
class _Result:
    exit_code: int
    outcome: str = ""


# Facts that phases and screens take apart. A line that has one of another shape is damaged.
_FACTS: Mapping[str, Any] = {
    "sealed": _Sealed,
    "rehearsal": _Rehearsal,
    "predicted": dict[str, float],
    "holder_before": str,
    "sealing_attempt": int,
    "seal_serial": int,
    "standby_attempt": int,
    "target_attempt": int,
    "crossing_step": int,
}


class JournalError(MidstreamError):
    """The journal cannot be written. The migration stops where it is: what is not written down is not done."""

    code = Exit.INTERRUPTED

    def __init__(self, path: Path, error: OSError):
        super().__init__(
            f"{path} cannot be written: {error.strerror}",
            f"make room there, then: midstream --continue {path.parent.name}",
        )


class Content:
    """What the lines of a journal say."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plan: Any = None  # the plan's JSON value
        self.fleet: str | None = None  # the fleet file's text
        self.damaged = 0  # lines that cannot be read, since the last that was made up for

    def take(self, lines: Iterable[bytes]) -> None:
        """Further lines, without their ends."""
        for line in lines:
            event = _parse(line)
            if event is None:
                self.damaged += 1
            elif event.event == PLAN_LINE:
                self.plan = event.detail.get("plan")
            elif event.event == FLEET_LINE:
                text = event.detail.get("text")
                self.fleet = text if isinstance(text, str) else self.fleet
            else:
                self.events.append(event)
                self.damaged += LOST in event.detail
                if REESTABLISHED in event.detail:
                    self.damaged = 0


class Journal:
    """One migration's journal, for the process that carries it out. Threads may write at once."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._facts: dict[str, Any] = {}
        try:
            # The fleet file's env: may hold what others are not to read.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchmod(self._descriptor, 0o600)
            # A torn last line would swallow the next one.
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                records.append(self._descriptor, b"\n")
        except OSError as error:
            raise JournalError(path, error) from error
        content = read(path)
        self.begun = bool(content.events)
        self.damaged = content.damaged
        self.headed = content.plan is not None and content.fleet is not None
        for event in content.events:
            if event.event == "fact":
                self._facts.update(event.detail)

    def write(self, event: str, *, phase: str = "", state: str = "", message: str = "", **detail: Any) -> Event:
        """Append one line; it is on the disk when this returns. Progress lines are many, and not waited for.
        JournalError where there is no room; nothing of the line stays then."""
        message = message.encode(errors="backslashreplace").decode()
        line = Event(event, time.time(), phase, state, message, detail)
        try:
            with self._lock:
                records.append(self._descriptor, line.line().encode() + b"\n")
                if state != "progress":
                    os.fsync(self._descriptor)
        except OSError as error:
            raise JournalError(self.path, error) from error
        return line

    def head(self, plan: Mapping[str, Any], fleet: str) -> None:
        """Write down the plan and the fleet file's text, where the journal does not have them."""
        if not self.headed:
            self.write(PLAN_LINE, plan=plan)
            self.write(FLEET_LINE, text=fleet)
            self.headed = True

    def lost(self) -> None:
        """Write down that this journal takes the place of one that is missing, empty or no file."""
        without: dict[str, Any] = {LOST: True}
        self.write("note", state="resumed", message="resumed by another process, without its journal", **without)
        self.damaged += 1

    def fact(self, **facts: Any) -> None:
        """Write down something that a continued migration must know: what was sealed, which attempt was started."""
        self.write("fact", **facts)
        self._facts.update(facts)

    def known(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, default)

    def close(self) -> None:
        os.close(self._descriptor)


def header(plan: Mapping[str, Any], fleet: str) -> bytes:
    """The first lines of a new journal."""
    now = time.time()
    lines = Event(PLAN_LINE, now, detail={"plan": plan}), Event(FLEET_LINE, now, detail={"text": fleet})
    return b"".join(line.line().encode() + b"\n" for line in lines)


def read(path: Path) -> Content:
    """The journal; empty where there is none. RecordError where it is no file that can be read."""
    content = Content()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return content
    except OSError as error:
        raise records.RecordError(f"{path}: {error.strerror}") from error
    content.take(data.splitlines())
    return content


def read_events(path: Path) -> list[Event]:
    """All complete lines, without those that hold plan and fleet file. RecordError as of ``read``."""
    return read(path).events


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
        self._file = 0  # its inode
        self._offset = 0
        self.content = Content()
        self.problem = ""  # why nothing of it can be read
        self.torn = False  # its last line has no end

    def events(self) -> tuple[Event, ...]:
        """All complete lines so far."""
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self._file or found.st_size < self._offset:  # another file, or it was cut
                    self._file, self._offset, self.content = found.st_ino, 0, Content()
                file.seek(self._offset)
                data = file.read()
                self.problem = "" if found.st_size else "is empty"
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            self.problem = "is missing" if missing else f"cannot be read: {error.strerror}"
            self._file, self._offset, self.content = 0, 0, Content()
            return ()
        whole = data[: data.rfind(b"\n") + 1]
        self.torn = len(whole) < len(data)
        self._offset += len(whole)
        self.content.take(whole.splitlines())
        return tuple(self.content.events)

    @property
    def damage(self) -> str:
        """What is wrong with the journal as of the last look, in words that follow its name; empty: nothing."""
        damaged = self.content.damaged + self.torn
        if self.problem or not damaged:
            return self.problem
        return "has 1 line that cannot be read" if damaged == 1 else f"has {damaged} lines that cannot be read"


def _parse(line: bytes) -> Event | None:
    """The event of a line; None where it is none, or one of another shape."""
    try:
        event = Event.from_json(json.loads(line))
        if event.event == "result":
            json_shapes.check(_Result, event.detail)
        elif event.state == model.PROGRESS:
            json_shapes.check(_Progress, event.detail)
        for name in _FACTS.keys() & event.detail.keys():
            json_shapes.check(_FACTS[name], event.detail[name])
    except (ValueError, RecursionError):  # ShapeError is a ValueError
        return None
    return event


def follow_events(path: Path, *, until: threading.Event, poll: float = 0.1, offset: int = 0) -> Iterator[Event]:
    """Complete lines as they come, from byte ``offset`` on, without those that hold plan and fleet file; ends when
    ``until`` is set and everything was read."""
    while True:
        ending = until.is_set()
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:  # not there yet, or no longer: whoever follows learns how it ended from its process
            data = b""
        whole = data[: data.rfind(b"\n") + 1]
        offset += len(whole)
        for line in whole.splitlines():
            event = _parse(line)
            if event is not None and event.event not in HEADER:
                yield event
        if ending:
            return
        until.wait(poll)
