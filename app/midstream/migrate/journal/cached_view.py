"""View of a migration that is read again only where its files have changed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.migrate.journal import damaged_files, fleet_scope, migration_state
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport
from midstream.migrate.journal.journal import JournalReader, outcome
from midstream.migrate.journal.migration_files import MigrationFiles
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import UNKNOWN, Plan

START_TIMEOUT = 30.0  # seconds for the process of a migration to start


class CachedView:
    """View of one migration. Unchanged files are not read again."""

    def __init__(self, directory: MigrationFiles) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._reader = JournalReader(directory.journal_file)
        self._mark: tuple[object, ...] = ()
        self._view: MigrationView | None = None
        self._fleet: Fleet | None = None
        self._fleet_mark: object = ()

    def view(self) -> MigrationView:
        """Return the view, the same object until a file changes."""
        directory = self._directory
        with self._lock:
            locked = directory.is_locked()
            files = (
                directory.plan_file, directory.fleet_file, directory.journal_file, directory.downtime_file,
                directory.certificate_file, directory.request_file,
            )  # fmt: skip
            mark = (locked, starting := self._may_be_starting(), *map(_signature, files))
            if self._view is None or mark != self._mark:
                self._view, self._mark = self._read(locked, starting), mark
            return self._view

    def _may_be_starting(self) -> bool:
        """Return whether the journal is so new that its process may still be starting."""
        try:
            return time.time() - self._directory.journal_file.stat().st_mtime < START_TIMEOUT
        except OSError:
            return False

    def _read(self, locked: bool, starting: bool) -> MigrationView:
        directory = self._directory
        events = self._reader.events()
        now = outcome(events)
        problems: list[str] = []
        # A line that is being written has no end yet.
        writing = locked and self._reader.partial and not self._reader.content.damaged
        if (wrong := self._reader.damage) and not writing:
            problems.append(f"{directory.journal_file.name} {wrong}")
        if wrong := damaged_files.problem_of(directory.plan_file, directory.check_plan):
            problems.append(f"{directory.plan_file.name} {wrong}")
        content = self._reader.content
        try:
            plan = directory.plan_or_journaled(content.plan)
        except MidstreamError:
            plan = None
        if wrong := damaged_files.problem_of(directory.fleet_file, lambda: directory.check_fleet(plan, content.fleet)):
            problems.append(f"{directory.fleet_file.name} {wrong}")
        for file, check in (
            (
                directory.downtime_file,
                lambda: damaged_files.parsed(directory.downtime_file, DowntimeReport.from_json),
            ),
            (
                directory.certificate_file,
                lambda: damaged_files.parsed(directory.certificate_file, Certificate.from_json),
            ),
            (directory.request_file, lambda: damaged_files.check_request(directory.request_file)),
        ):
            if os.path.lexists(file) and (wrong := damaged_files.problem_of(file, check)):
                problems.append(f"{file.name} {wrong}")
        results = (event.detail for event in reversed(events) if event.event == "result")
        result = next(results, dict[str, Any]())
        unreadable = plan is None or self._reader.newer
        state = migration_state.DAMAGED if unreadable else now.outcome or migration_state.INTERRUPTED
        if (locked or (starting and not events and not unreadable)) and not now.ended:
            state = migration_state.RUNNING
        return MigrationView(
            directory.migration,
            plan or Plan.unknown(directory.migration),
            state,
            now.phase,
            events,
            directory.downtime() or damaged_files.journaled(result.get("downtime"), DowntimeReport.from_json),
            directory.certificate() or damaged_files.journaled(result.get("certificate"), Certificate.from_json),
            now.finished,
            now.error,
            tuple(problems),
            self._reader.newer,
        )

    def belongs_to(self, fleet: Fleet) -> bool:
        plan = self.view().plan
        return plan.source == UNKNOWN or fleet_scope.belongs(plan, lambda: self._own_fleet(plan), fleet)

    def _own_fleet(self, plan: Plan) -> Fleet | None:
        """Return the fleet of the plan; None if no file has it."""
        with self._lock:
            mark = (_signature(self._directory.fleet_file), self._reader.content.fleet)
            if mark != self._fleet_mark:
                try:
                    self._fleet = self._directory.fleet_or_journaled(plan, self._reader.content.fleet)
                except MidstreamError:
                    self._fleet = None
                self._fleet_mark = mark
            return self._fleet


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file does; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
