"""Recorded sessions (reports of hosts, migrations), replayed on the same screens.

One JSON object per line: ``{"at": seconds, "do": ..., ...}`` with one of hosts, take, skew, link,
set_bucket_checkpoints and migration; the first has the version.
"""

from __future__ import annotations

import json
import math
import shlex
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from midstream.errors import MidstreamError, UsageError
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.event import Event
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.tui.actions import Actions
from midstream.tui.target_choice import TargetChoice
from midstream.watch.snapshot import Snapshot
from midstream.watch.snapshot_store import SnapshotStore

VERSION = 2
HINT = "midstream --record FILE writes one"
TICK_INTERVAL = 0.1  # seconds between checks for due entries


class Recorder:
    """Writer of a session to a file. Thread-safe.

    A failed write, for example on a full disk, ends it: ``problem`` then says why.
    """

    def __init__(self, file: str) -> None:
        self.problem = ""
        try:
            self._file = Path(file).expanduser().open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}", "name another file") from error
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, Any]] = {}
        self._put({"do": "begin", "version": VERSION})

    def _put(self, entry: Mapping[str, Any]) -> None:
        with self._lock:
            if self._file.closed:
                return
            try:
                self._file.write(json.dumps({"at": time.time(), **entry}, default=list) + "\n")
                self._file.flush()
            except OSError as error:  # the session goes on: its hosts would count as lost
                self.problem = f"{self._file.name} is not complete: {error.strerror}"
                with suppress(OSError):  # it writes again what it could not write
                    self._file.close()

    def record(self, what: str, *words: object) -> None:
        """Record a call of the snapshot store and its arguments."""
        self._put({"do": what, "words": words})

    def migrations(self, views: tuple[MigrationView, ...]) -> None:
        """Record the changes of the migrations since the last call."""
        for view in views:
            now = {
                "state": view.state,
                "phase": view.phase,
                "events": len(view.events),
                "downtime": view.downtime.to_json() if view.downtime else None,
                "certificate": view.certificate.to_json() if view.certificate else None,
                "finished": view.finished,
                "error": view.error,
            }
            before = self._written.get(view.migration)
            if before == now:
                continue
            new = view.events[before["events"] if before else 0 :]
            entry = {**now, "events": [event.to_json() for event in new]}
            if before is None:
                entry["plan"] = view.plan.to_json()
            self._written[view.migration] = now
            self._put({"do": "migration", "migration": view.migration, "view": entry})

    def wrap(self, actions: Actions) -> Actions:
        """Return ``actions`` with the migrations that it reads recorded."""
        return cast(Actions, _RecordedActions(actions, self))

    def close(self) -> None:
        with self._lock:
            self._file.close()


class _RecordedActions:
    def __init__(self, actions: Actions, recorder: Recorder) -> None:
        self._actions = actions
        self._recorder = recorder

    def __getattr__(self, name: str) -> object:
        return getattr(self._actions, name)

    def migrations(self) -> tuple[MigrationView, ...]:
        views = self._actions.migrations()
        self._recorder.migrations(views)
        return views


class Replay:
    """Recorded session as a source of snapshots and migrations, sped up by ``speed``."""

    def __init__(self, entries: list[dict[str, Any]], speed: float = 1.0) -> None:
        self._entries = entries
        self._speed = speed
        self._next = 0
        self._now = float(entries[0]["at"]) if entries else 0.0
        self._store = SnapshotStore({}, clock=self.clock)
        self._views: dict[str, MigrationView] = {}
        self._lock = threading.Lock()
        self._callbacks: list[Callable[..., Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)

    @classmethod
    def load(cls, file: str, speed: float = 1.0) -> Replay:
        """Load a recording.

        Raises:
            UsageError: The file is not a recording, or one of another version.
        """
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}", HINT) from error
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:
                break  # the partial last line of a killed session
        if not entries or not isinstance(entries[0], dict) or entries[0].get("version") != VERSION:
            raise UsageError(f"{file} is not a recorded session", HINT)
        return cls(entries, speed)

    # ------------------------------------------------------------------------------------------ playing

    @property
    def ended(self) -> bool:
        return self._next == len(self._entries)

    def clock(self) -> float:
        return self._now

    def play(self) -> None:
        """Play in a background thread."""
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _play(self) -> None:
        began, first = time.monotonic(), self._now
        while not self._ended.is_set():
            self.advance(first + (time.monotonic() - began) * self._speed)
            self._ended.wait(TICK_INTERVAL)

    def advance(self, until: float) -> None:
        """Apply every entry recorded up to ``until`` (UTC seconds)."""
        changed = False
        while self._next < len(self._entries) and self._entries[self._next]["at"] <= until:
            entry = self._entries[self._next]
            self._next += 1
            self._now = entry["at"]
            self._apply(entry)
            changed = True
        if math.isfinite(until):
            self._now = max(self._now, until)
        if changed:
            snapshot = self.snapshot()
            for callback in tuple(self._callbacks):
                callback(snapshot)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        what = entry["do"]
        if what == "hosts":
            self._store = SnapshotStore(entry["words"][0], clock=self.clock)
        elif what in ("take", "skew", "link", "set_bucket_checkpoints"):
            getattr(self._store, what)(*entry["words"])
        elif what == "migration":
            with self._lock:
                self._migration(entry["migration"], entry["view"])

    def _migration(self, name: str, view: Mapping[str, Any]) -> None:
        view_before = self._views.get(name)
        plan = Plan.from_json(view["plan"]) if "plan" in view else view_before.plan if view_before else None
        if plan is None:
            return
        downtime, certificate = view["downtime"], view["certificate"]
        self._views[name] = MigrationView(
            name,
            plan,
            view["state"],
            view["phase"],
            (view_before.events if view_before else ()) + tuple(Event.from_json(event) for event in view["events"]),
            DowntimeReport.from_json(downtime) if downtime else None,
            Certificate.from_json(certificate) if certificate else None,
            view["finished"],
            view["error"],
        )

    # ------------------------------------------------------------------------------------------ snapshots

    def snapshot(self) -> Snapshot:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., object], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # ------------------------------------------------------------------------------------------ actions

    def migrations(self) -> tuple[MigrationView, ...]:
        """Return the migrations recorded so far, newest first."""
        with self._lock:
            return tuple(sorted(self._views.values(), key=lambda view: view.migration, reverse=True))

    @property
    def actions(self) -> Actions:
        """Actions that return the recorded migrations and refuse everything else."""
        return cast(Actions, _ReplayActions(self))


class _ReplayActions:
    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def migrations(self) -> tuple[MigrationView, ...]:
        return self._replay.migrations()

    def targets(self) -> tuple[TargetChoice, ...]:
        return ()

    def command(self, *words: str) -> str:
        """Return the command line without a fleet file: a recording has none."""
        return shlex.join(["midstream", *words])

    def has_receivers(self) -> bool:
        """Return False: what was recorded was reported then."""
        return False

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _refuse


def _refuse(*_: object) -> NoReturn:
    raise MidstreamError("a recording has no hosts to act on", "start midstream without --replay")
