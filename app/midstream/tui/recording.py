"""A session in a file: what the hosts told and how the migrations went on, with the time of each. Shown again, it makes
the same screens, and a person may look around in them.

One JSON object a line: ``{"at": seconds, "do": "hosts|take|skew|link|shelf|migration", ...}``; the first tells the
version.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import model
from midstream.tui.actions import Actions, Slices, Target
from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.snapshot_store import Store

VERSION = 1
HINT = "midstream --record FILE writes one"
TICK = 0.1  # seconds between two looks at what is due


class Recorder:
    """Writes a session as it goes. Any thread may use it."""

    def __init__(self, file: str) -> None:
        try:
            self._file = Path(file).expanduser().open("w", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}", "name another file") from error
        self._lock = threading.Lock()
        self._written: dict[str, dict[str, Any]] = {}
        self._put({"do": "begin", "version": VERSION})

    def _put(self, entry: Mapping[str, Any]) -> None:
        with self._lock:
            if not self._file.closed:
                self._file.write(json.dumps({"at": time.time(), **entry}, default=list) + "\n")
                self._file.flush()

    def heard(self, what: str, *words: Any) -> None:
        """What a store was told."""
        self._put({"do": what, "words": words})

    def migrations(self, views: tuple[model.MigrationView, ...]) -> None:
        """What is new of the migrations."""
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

    def over(self, actions: Actions) -> Actions:
        """The same actions; what they tell of migrations is recorded."""
        return cast(Actions, _Overheard(actions, self))

    def close(self) -> None:
        with self._lock:
            self._file.close()


class _Overheard:
    def __init__(self, actions: Actions, recorder: Recorder) -> None:
        self._actions = actions
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actions, name)

    def migrations(self) -> tuple[model.MigrationView, ...]:
        views = self._actions.migrations()
        self._recorder.migrations(views)
        return views


class Replay:
    """A recorded session as a source of snapshots and migrations, ``speed`` times as fast as it was."""

    def __init__(self, entries: list[dict[str, Any]], speed: float = 1.0) -> None:
        self._entries = entries
        self._speed = speed
        self._next = 0
        self._now = float(entries[0]["at"]) if entries else 0.0
        self._store = Store({}, clock=self.clock)
        self._views: dict[str, model.MigrationView] = {}
        self._lock = threading.Lock()
        self._callbacks: list[Callable[..., Any]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)

    @classmethod
    def load(cls, file: str, speed: float = 1.0) -> Replay:
        """UsageError where the file is no recording, or one of another version."""
        try:
            lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise UsageError(
                f"{file} cannot be read: {error.strerror}", "midstream --record FILE writes one"
            ) from error
        entries = []
        for line in lines:
            try:
                entries.append(json.loads(line))
            except ValueError:
                break  # the last line of a session that was killed
        if not entries or not isinstance(entries[0], dict) or entries[0].get("version") != VERSION:
            raise UsageError(f"{file} is no recorded session", HINT)
        return cls(entries, speed)

    # ------------------------------------------------------------------------------------------ playing

    @property
    def ended(self) -> bool:
        return self._next == len(self._entries)

    def clock(self) -> float:
        return self._now

    def play(self) -> None:
        """Go on by itself, in the background."""
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _play(self) -> None:
        began, first = time.monotonic(), self._now
        while not self._ended.is_set():
            self.advance(first + (time.monotonic() - began) * self._speed)
            self._ended.wait(TICK)

    def advance(self, until: float) -> None:
        """Take in all that was recorded up to a time (UTC seconds)."""
        told = False
        while self._next < len(self._entries) and self._entries[self._next]["at"] <= until:
            entry = self._entries[self._next]
            self._next += 1
            self._now = entry["at"]
            self._take(entry)
            told = True
        if math.isfinite(until):
            self._now = max(self._now, until)
        if told:
            snapshot = self.snapshot()
            for callback in tuple(self._callbacks):
                callback(snapshot)

    def _take(self, entry: Mapping[str, Any]) -> None:
        what = entry["do"]
        if what == "hosts":
            self._store = Store(entry["words"][0], clock=self.clock)
        elif what in ("take", "skew", "link", "shelf"):
            getattr(self._store, what)(*entry["words"])
        elif what == "migration":
            with self._lock:
                self._migration(entry["migration"], entry["view"])

    def _migration(self, name: str, view: Mapping[str, Any]) -> None:
        known = self._views.get(name)
        plan = model.Plan.from_json(view["plan"]) if "plan" in view else known.plan if known else None
        if plan is None:
            return
        ledger, proof = view["downtime"], view["certificate"]
        self._views[name] = model.MigrationView(
            name,
            plan,
            view["state"],
            view["phase"],
            (known.events if known else ()) + tuple(model.Event.from_json(event) for event in view["events"]),
            model.DowntimeReport.from_json(ledger) if ledger else None,
            model.Certificate.from_json(proof) if proof else None,
            view["finished"],
            view["error"],
        )

    # ------------------------------------------------------------------------------------------ the source

    def snapshot(self) -> Snapshot:
        return self._store.snapshot()

    def subscribe(self, callback: Callable[..., Any], /) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    # ------------------------------------------------------------------------------------------ the actions

    def migrations(self) -> tuple[model.MigrationView, ...]:
        """Newest first."""
        with self._lock:
            return tuple(sorted(self._views.values(), key=lambda view: view.migration, reverse=True))

    def targets(self) -> tuple[Target, ...]:
        return ()

    def make_plan(self, snapshot: Snapshot, request: model.Request) -> model.Plan:
        raise _only_looked_at()

    def preflight(self, plan: model.Plan) -> Iterator[model.Check]:
        raise _only_looked_at()

    def start(self, plan: model.Plan) -> str:
        raise _only_looked_at()

    def rollback(self, migration: str) -> None:
        raise _only_looked_at()

    def continue_(self, migration: str) -> None:
        raise _only_looked_at()

    def stop_run(self, run: RunView) -> None:
        raise _only_looked_at()

    def verify(self, run: RunView, checkpoint: str) -> list[str]:
        raise _only_looked_at()

    def compare(self, run: RunView, first: str, second: str) -> list[str]:
        raise _only_looked_at()

    def config(self, run: RunView, attempt: int) -> str:
        raise _only_looked_at()

    def read_log(self, run: RunView) -> list[str]:
        raise _only_looked_at()

    def ssh_hosts(self) -> tuple[dict[str, str], list[str], str]:
        raise _only_looked_at()

    def add_hosts(self, lines: list[str]) -> None:
        raise _only_looked_at()

    def slices(self) -> Slices:
        raise _only_looked_at()

    def create(self, target: str) -> None:
        raise _only_looked_at()

    def delete(self, place: str, say: Callable[[str], None]) -> None:
        raise _only_looked_at()

    def shell(self, host: str) -> int:
        raise _only_looked_at()


def _only_looked_at() -> MidstreamError:
    return MidstreamError("this is a recording: its hosts are not there", "midstream without --replay reaches them")
