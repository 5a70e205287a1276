"""Journal of a migration: one line before and after each action.

`journal.jsonl` is sufficient to continue a migration: its first lines contain format, plan and fleet file, the others
what was done. Lines are appended and fsynced. A line that cannot be read is counted, never guessed: its facts are
established again from the hosts (``journal_recovery.py``).
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from midstream.counts import count
from midstream.errors import Exit, MidstreamError
from midstream.migrate.journal import migration_state, phase_names
from midstream.migrate.journal.event import STAGE, Event
from midstream.migrate.journal.facts import FACT, Facts
from midstream_core import json_shapes, records
from midstream_core.json_types import JsonObject

PLAN_LINE, FLEET_LINE = "plan", "fleet"  # the events with the plan and the fleet file's text
HEADER = (PLAN_LINE, FLEET_LINE)
FORMAT = 1  # of the journal, in its plan's line; a journal of a newer one is not read
WITHDRAWN = "withdrawn"  # state of the note that takes a begun rollback back; its phase is where the migration goes on
FOLLOW_POLL = 0.1  # seconds between two looks at a growing journal
LOST = "journal_lost"  # marks a journal that replaces a missing or empty one: earlier lines are unknown


@dataclass(frozen=True)
class _Progress:
    bytes_done: int
    bytes_total: int
    what: str = ""
    bytes_per_second: float = 0.0


@dataclass(frozen=True)
class _StageTime:
    stage: str
    seconds: float = 0.0
    estimated_seconds: float | None = None


@dataclass(frozen=True)
class _Result:
    exit_code: int
    outcome: str = ""


class JournalError(MidstreamError):
    """Error: the journal cannot be written.

    The migration stops: every action is journaled first.
    """

    code = Exit.INTERRUPTED

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} cannot be written: {error.strerror}",
            f"make room there, then: midstream --continue {path.parent.name}",
        )


REMEMBERED = 1 << 12  # bytes of a line whose event is remembered


class Content:
    """Content of a journal's lines."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.plan: Any = None  # the plan's JSON value
        self.fleet: str | None = None  # the fleet file's text
        self.facts = Facts()
        self.damaged = 0  # unreadable lines since facts were last established again

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Add further lines, without their line ends.

        Raises:
            NewerFormatError: A newer midstream wrote them.
        """
        for line in lines:
            event = _parse(line)
            if event is None:
                self.damaged += 1
            elif event.event == PLAN_LINE:
                records.check_format(event.detail, FORMAT, "journal.jsonl")
                self.plan = event.detail.get("plan")
            elif event.event == FLEET_LINE:
                text = event.detail.get("text")
                self.fleet = text if isinstance(text, str) else self.fleet
            else:
                self.events.append(event)
                self.damaged += LOST in event.detail
                if event.event == FACT:
                    facts = Facts.from_json(event.detail)
                    self.facts = self.facts.updated(facts)
                    if facts.reestablished_at is not None:
                        self.damaged = 0


class Journal:
    """One migration's journal, for the process that executes it. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open a journal for writing.

        Raises:
            MidstreamError: A newer midstream wrote it: nothing is written then.
        """
        refuse_newer(path)
        self.path = path
        self._lock = threading.Lock()
        try:
            # The fleet file's fields env: are for settings, and a user may still have put something private there.
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            os.fchmod(self._descriptor, 0o600)
            # Without its line end, a partial last line would be joined with the next one.
            size = os.fstat(self._descriptor).st_size
            if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
                records.append_line(self._descriptor, b"\n")
        except OSError as error:
            raise JournalError(path, error) from error
        content = read(path)
        self.begun = bool(content.events)
        self.damaged = content.damaged
        self.has_header = content.plan is not None and content.fleet is not None
        self.facts = content.facts

    def write(self, event: str, *, phase: str = "", state: str = "", message: str = "", **detail: Any) -> Event:
        """Append one line, and fsync it unless it is a progress line.

        Args:
            event: its kind, see `Event`.
            phase: the phase it belongs to.
            state: of the phase.
            message: one line for the user.
            detail: further JSON values.

        Raises:
            JournalError: there is no space; no part of the line remains then.
        """
        message = message.encode(errors="backslashreplace").decode()
        line = Event(event, time.time(), phase, state, message, detail)
        try:
            with self._lock:
                records.append_line(self._descriptor, line.line().encode() + b"\n")
                if state != "progress":
                    os.fsync(self._descriptor)
        except OSError as error:
            raise JournalError(self.path, error) from error
        return line

    def write_header(self, plan: JsonObject, fleet: str) -> None:
        """Write the plan and the fleet file's text, if the journal lacks them."""
        if not self.has_header:
            self.write(PLAN_LINE, format=FORMAT, plan=plan)
            self.write(FLEET_LINE, text=fleet)
            self.has_header = True

    def write_lost(self) -> None:
        """Write that this journal replaces one that is missing, empty or no file."""
        without: dict[str, Any] = {LOST: True}
        self.write("note", state="resumed", message="resumed by another process, without its journal", **without)
        self.damaged += 1

    def record(self, facts: Facts) -> None:
        """Append facts that a process which continues the migration needs."""
        self.write(FACT, **facts.to_json())
        self.facts = self.facts.updated(facts)

    def close(self) -> None:
        """Close the file.

        A thread that still writes gets JournalError, and does not write into the next file of the same number.
        """
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def header(plan: JsonObject, fleet: str) -> bytes:
    """Return the first lines of a new journal."""
    now = time.time()
    lines = (
        Event(PLAN_LINE, now, detail={"format": FORMAT, "plan": plan}),
        Event(FLEET_LINE, now, detail={"text": fleet}),
    )
    return b"".join(line.line().encode() + b"\n" for line in lines)


def read(path: Path) -> Content:
    """Return a journal's content, empty without a file.

    Raises:
        RecordError: it cannot be read; NewerFormatError if a newer midstream wrote it.
    """
    content = Content()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return content
    except OSError as error:
        raise records.RecordError(f"{path}: {error.strerror}") from error
    content.add_lines(data.splitlines())
    return content


def refuse_newer(path: Path) -> None:
    """Raise MidstreamError, with code REFUSED, if a newer midstream wrote the journal."""
    try:
        read(path)
    except records.NewerFormatError as error:
        raise MidstreamError(f"migration {path.parent.name}: {error}", code=Exit.REFUSED) from None
    except records.RecordError:
        return  # damaged: the function that needs its content reports that


def read_events(path: Path) -> list[Event]:
    """Return all events but plan and fleet file. RecordError as of ``read``."""
    return read(path).events


@dataclass(frozen=True)
class Outcome:
    """State of a migration according to its journal."""

    outcome: str = ""  # of the newest result; empty if it was resumed since
    exit_code: int = 0
    phase: str = phase_names.PLAN  # the newest that was begun
    error: str = ""
    finished: bool = False  # the source is retired

    @property
    def ended(self) -> bool:
        """Return whether nothing is left to do."""
        return self.outcome in (migration_state.COMPLETED, migration_state.ROLLED_BACK, migration_state.MOVED_ON)


def outcome(events: Iterable[Event]) -> Outcome:
    """Return the outcome of a journal's events."""
    now = Outcome()
    for event in events:
        if event.event == "phase":
            now = replace(now, phase=event.phase)
            if (event.phase, event.state) == (phase_names.FINISH, phase_names.DONE):
                now = replace(now, finished=True)
            if event.state == phase_names.FAILED:
                now = replace(now, error=event.message)
        elif event.event == "result":
            now = replace(
                now,
                outcome=str(event.detail.get("outcome", "")),
                exit_code=int(event.detail.get("exit_code", 1)),
                error=event.message if not event.detail.get("ok") else "",
            )
        elif (event.event, event.state) == ("note", WITHDRAWN):
            now = replace(now, phase=event.phase)
        elif event.event == "note" and event.state == "resumed" and not now.ended:
            now = replace(now, outcome="")
    return now


def begun_rollback(events: Iterable[Event]) -> Event | None:
    """Return the event that began the rollback.

    None without one, or where it was withdrawn since.
    """
    begun = None
    for event in events:
        if (event.event, event.phase, event.state) == ("phase", phase_names.ROLLBACK, phase_names.STARTED):
            begun = event
        elif (event.event, event.state) == ("note", WITHDRAWN):
            begun = None
    return begun


class JournalReader:
    """Reads a growing journal; each call reads only what was appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode: int = 0
        self._offset = 0
        self.content = Content()
        self.problem = ""  # why it cannot be read
        self.newer = False  # whether a newer midstream wrote it
        self.partial = False  # whether its last line has no end

    def events(self) -> tuple[Event, ...]:
        """All complete lines so far."""
        self.newer = False
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:  # replaced or truncated
                    self._inode, self._offset, self.content = status.st_ino, 0, Content()
                file.seek(self._offset)
                data = file.read()
                self.problem = "" if status.st_size else "is empty"
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            self.problem = "is missing" if missing else f"cannot be read: {error.strerror}"
            self._inode, self._offset, self.content = 0, 0, Content()
            return ()
        complete = data[: data.rfind(b"\n") + 1]
        self.partial = len(complete) < len(data)
        self._offset += len(complete)
        try:
            self.content.add_lines(complete.splitlines())
        except records.NewerFormatError as error:
            self.problem, self.newer = str(error).removeprefix("journal.jsonl: "), True
            self._inode, self._offset, self.content = 0, 0, Content()
        return tuple(self.content.events)

    @property
    def damage(self) -> str:
        """The journal's damage at the last read, in words that follow its name; or empty."""
        damaged = self.content.damaged + self.partial
        if self.problem or not damaged:
            return self.problem
        return f"has {count(damaged, 'line')} that cannot be read"


def _parse(line: bytes) -> Event | None:
    """Return the event of a line; None if it is not valid."""
    return _parsed(line) if len(line) <= REMEMBERED else _parse_line(line)


def _parse_line(line: bytes) -> Event | None:
    try:
        event = Event.from_json(json.loads(line))
        if event.event == "result":
            json_shapes.check(_Result, event.detail)
        elif event.event == STAGE:
            json_shapes.check(_StageTime, event.detail)
        elif event.state == phase_names.PROGRESS:
            json_shapes.check(_Progress, event.detail)
        elif event.event == FACT:
            Facts.from_json(event.detail)
    except (ValueError, RecursionError):  # ShapeError and RecordError are ValueErrors
        return None
    return event


_parsed = functools.lru_cache(maxsize=1024)(_parse_line)


def follow_events(path: Path, *, until: threading.Event, offset: int = 0) -> Iterator[Event]:
    """Yield events from byte ``offset`` on as written, except plan and fleet file.

    Ends when ``until`` is set and everything was read.
    """
    name = str(path)  # looked at ten times a second
    while True:
        ending = until.is_set()
        try:
            data = b""
            if os.stat(name).st_size > offset:
                with open(name, "rb") as file:
                    file.seek(offset)
                    data = file.read()
        except OSError:  # missing: the follower gets the result from the migration's process
            data = b""
        complete = data[: data.rfind(b"\n") + 1]
        offset += len(complete)
        for line in complete.splitlines():
            event = _parse(line)
            if event is not None and event.event not in HEADER:
                yield event
        if ending:
            return
        until.wait(FOLLOW_POLL)
