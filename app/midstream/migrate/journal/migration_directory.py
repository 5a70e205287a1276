"""Directory of a migration, readable by its owner alone (0700).

It is `$MIDSTREAM_STATE/migrations/<id>/`.

journal.jsonl      plan and fleet file, then what was done: sufficient to continue
plan.json          the plan; written once
fleet.yaml         the fleet file of the plan, so that a continued migration reaches the same machines
downtime.json      the downtime report, predicted and measured
run.yaml           the run's config, if a rollback leaves a run that has to be started by the user
certificate.json   the proof; certificate.md is the readable form, with the curve in certificate.svg
.lock              locked by the process that executes the migration
request            the user's request to that process: "rollback"
request-mode       request that a live migration continues as a warm migration: "warm"

Each of them may be damaged. Required content is then read from the journal, and the view names the damage.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.migrate.journal import damaged_files, fleet_scope
from midstream.migrate.journal import journal as journals
from midstream.migrate.journal.journal import JournalReader, outcome
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.records import migration_state
from midstream.migrate.records.certificate import Certificate
from midstream.migrate.records.downtime_report import DowntimeReport
from midstream.migrate.records.modes import WARM
from midstream.migrate.records.plan import UNKNOWN, Plan
from midstream.state_directory import state_directory
from midstream.suggestions import did_you_mean
from midstream_engine import records

LOCK_TIMEOUT = 0.5  # seconds
START_TIMEOUT = 30.0  # seconds for the process of a migration to start
FILES = ("journal.jsonl", "plan.json", "fleet.yaml", "downtime.json", "certificate.json", ".lock", "process.log")


def migrations_directory() -> Path:
    return state_directory() / "migrations"


def new_id(run_id: str) -> str:
    """Return a unique id that sorts by time: ``20261121-101502-nano-3fa9``."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{run_id[:40]}-{secrets.token_hex(2)}"


class MigrationDirectory:
    """The files of one migration."""

    def __init__(self, migration: str) -> None:
        self.migration = migration
        self.path = migrations_directory() / migration
        self.plan_file = self.path / "plan.json"
        self.fleet_file = self.path / "fleet.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.downtime_file = self.path / "downtime.json"
        self.certificate_file = self.path / "certificate.json"
        self.page_file = self.path / "certificate.md"
        self.picture_file = self.path / "certificate.svg"
        self.request_file = self.path / "request"
        self.mode_file = self.path / "request-mode"
        self.log_file = self.path / "process.log"
        self._lock_file = self.path / ".lock"

    @classmethod
    def find(cls, migration: str) -> MigrationDirectory:
        """Return the one with this id or unique prefix of an id. UsageError otherwise."""
        known = migration_ids()
        matches = [name for name in known if name == migration] or [
            name for name in known if name.startswith(migration)
        ]
        if len(matches) == 1:
            return cls(matches[0])
        if matches:
            raise UsageError(f"migration {migration!r} is ambiguous: {', '.join(matches)}", "give more of its id")
        raise UsageError(
            f"no migration {migration!r} under {migrations_directory()}",
            did_you_mean(migration, known) or f"known: {', '.join(known[:5])}"
            if known
            else "there are none yet: midstream --migrate RUN --to TARGET starts one",
        )

    def journal_size(self) -> int:
        """Return the journal's size in bytes: the offset of the next line."""
        return self.journal_file.stat().st_size if self.journal_file.is_file() else 0

    def journal_lost(self) -> bool:
        """Return whether the journal is missing, empty or no file.

        A new migration has one.
        """
        return not self.journal_size()

    # ------------------------------------------------------------------------------------------ content

    def plan(self) -> Plan:
        """Return the plan, from the journal if plan.json is damaged.

        Raises:
            MidstreamError: Both are damaged.
        """
        return self.plan_or_journaled(self._journal().plan)

    def _journal(self) -> journals.Content:
        """Return the journal's content, empty if it cannot be read."""
        try:
            return journals.read(self.journal_file)
        except records.RecordError:
            return journals.Content()

    def plan_or_journaled(self, journaled: object) -> Plan:
        """Return the plan, from its journaled JSON value if plan.json is damaged."""
        try:
            return Plan.from_json(records.read_json(str(self.plan_file)), str(self.plan_file))
        except (OSError, records.RecordError) as error:
            why = error
        try:
            return Plan.from_json(journaled, str(self.journal_file))
        except records.RecordError:
            raise self._lost(self.plan_file, why) from None

    def fleet(self) -> Fleet:
        """Return the fleet of the plan, from the journal if fleet.yaml is damaged.

        Raises:
            MidstreamError: both are damaged.
        """
        content = self._journal()
        return self.fleet_or_journaled(self.plan_or_journaled(content.plan), content.fleet)

    def fleet_or_journaled(self, plan: Plan, journaled: str | None) -> Fleet:
        """Return the fleet, from its journaled text if fleet.yaml is damaged."""
        try:
            self.check_fleet(plan, journaled)
            return load_fleet(self.fleet_file)
        except UsageError as error:
            if journaled is None:
                raise self._lost(self.fleet_file, error) from None
        return parse_fleet(journaled, str(self.fleet_file))

    def _lost(self, file: Path, why: Exception) -> MidstreamError:
        return MidstreamError(
            f"migration {self.migration}: {damaged_files.what_is_wrong(file, why)}, and the journal does not "
            "have its content",
            f"restore {file} or {self.journal_file} from a backup; midstream --status shows where the run is",
            Exit.REFUSED,
        )

    def downtime(self) -> DowntimeReport | None:
        """Return the downtime report; None if it is missing or damaged."""
        return damaged_files.read_or_none(self.downtime_file, DowntimeReport.from_json)

    def certificate(self) -> Certificate | None:
        """Return the certificate; None if it is missing or damaged."""
        return damaged_files.read_or_none(self.certificate_file, Certificate.from_json)

    def restore(self, journal: journals.Journal) -> list[str]:
        """Restore plan.json, fleet.yaml and the journal's first lines from each other.

        Returns a line for each that was damaged and restored.

        Raises:
            MidstreamError: no file has the content.
        """
        content = self._journal()
        plan = self.plan_or_journaled(content.plan)
        self.fleet_or_journaled(plan, content.fleet)
        restored: list[str] = []
        if why := damaged_files.problem_of(self.plan_file, self.check_plan):
            self._put(self.plan_file, records.canonical_json(plan.to_json()))
            restored.append(f"{self.plan_file.name} {why}: restored from the journal")
        if why := damaged_files.problem_of(self.fleet_file, lambda: self.check_fleet(plan, content.fleet)):
            self._put(self.fleet_file, (content.fleet or "").encode())
            restored.append(f"{self.fleet_file.name} {why}: restored from the journal")
        if not journal.has_header:
            journal.write_header(plan.to_json(), self.fleet_file.read_text())
        return restored

    def check_plan(self) -> None:
        """Raise OSError or RecordError if plan.json is damaged."""
        Plan.from_json(records.read_json(str(self.plan_file)), self.plan_file.name)

    def check_fleet(self, plan: Plan | None, journaled: str | None) -> None:
        """Check that fleet.yaml can be read and has the hosts that the plan names.

        A file equal to the journaled text is never damaged.

        Raises:
            UsageError: It cannot be read, or lacks such a host.
        """
        with suppress(OSError, UnicodeDecodeError):  # load_fleet names what is wrong
            if journaled is not None and self.fleet_file.read_text() == journaled:
                return
        fleet = load_fleet(self.fleet_file)
        missing = [name for name in (plan.source, plan.target) if name not in fleet.target_names] if plan else []
        if missing and not fleet.has_slices:
            raise UsageError(f"{self.fleet_file} has no host {missing[0]}, which the plan names")

    @staticmethod
    def _put(file: Path, data: bytes) -> None:
        damaged_files.set_aside(file)
        records.write_bytes(str(file), data, mode=0o600)

    # ------------------------------------------------------------------------------------------ requests

    def request_rollback(self) -> None:
        damaged_files.set_aside(self.request_file)
        records.write_bytes(str(self.request_file), b"rollback\n")

    def rollback_requested(self) -> bool:
        """Return whether the user requested a rollback. Any other content is ignored."""
        return damaged_files.request(self.request_file) == damaged_files.ROLLBACK

    def request_warm_mode(self) -> None:
        damaged_files.set_aside(self.mode_file)
        records.write_bytes(str(self.mode_file), f"{WARM}\n".encode())

    def withdraw_request(self) -> None:
        with suppress(OSError):  # a path that is no file is no request
            self.request_file.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ lock

    @contextmanager
    def locked(self) -> Generator[None, None, None]:
        """Lock the migration, for the process that executes it. MidstreamError if locked."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MidstreamError(
                f"{self._lock_file} cannot be opened: {error.strerror}", f"move it away: mv {self._lock_file} /tmp"
            ) from error
        try:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    if time.monotonic() >= deadline:
                        message = f"migration {self.migration} is being executed by another process"
                        raise MidstreamError(message) from error
                time.sleep(0.01)  # `is_locked` locks it for a moment
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            yield
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Return whether a process executes the migration now."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # missing, or not a file that can be locked
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def view(self) -> MigrationView:
        """Return the migration as its files describe it; ``damage`` names damaged ones."""
        return self._cached().view()

    def belongs_to(self, fleet: Fleet) -> bool:
        """Return whether it migrates a run between hosts of this fleet, see `fleet_scope`.

        One whose hosts cannot be read is shown, not hidden.
        """
        return self._cached().belongs_to(fleet)

    def _cached(self) -> _CachedView:
        return _CACHED_VIEWS.setdefault(self.path, _CachedView(self))


class _CachedView:
    """View of a migration that is read repeatedly: unchanged files are not read again."""

    def __init__(self, directory: MigrationDirectory) -> None:
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
        found: list[str] = []
        # A line that is being written has no end yet.
        writing = locked and self._reader.partial and not self._reader.content.damaged
        if (wrong := self._reader.damage) and not writing:
            found.append(f"{directory.journal_file.name} {wrong}")
        if wrong := damaged_files.problem_of(directory.plan_file, directory.check_plan):
            found.append(f"{directory.plan_file.name} {wrong}")
        content = self._reader.content
        try:
            plan = directory.plan_or_journaled(content.plan)
        except MidstreamError:
            plan = None
        if wrong := damaged_files.problem_of(directory.fleet_file, lambda: directory.check_fleet(plan, content.fleet)):
            found.append(f"{directory.fleet_file.name} {wrong}")
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
                found.append(f"{file.name} {wrong}")
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
            tuple(found),
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


_CACHED_VIEWS: dict[Path, _CachedView] = {}


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the file does; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def migration_ids() -> list[str]:
    """Return ids of directories with any file of a migration, newest first."""
    try:
        names = os.listdir(migrations_directory())
    except OSError:
        return []
    found = [name for name in names if not name.startswith(".") and _is_migration(migrations_directory() / name)]
    return sorted(found, reverse=True)


def _is_migration(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in FILES)


def create(plan: Plan, fleet_text: str) -> MigrationDirectory:
    """Create the directory of a new migration: plan, fleet file, first journal lines.

    It is complete or absent.

    Raises:
        MidstreamError: it cannot be written.
    """
    directory = MigrationDirectory(plan.migration)
    building = directory.path.with_name(f".{plan.migration}.{os.getpid()}")
    try:
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir(mode=0o700)
        value = plan.to_json()
        for name, data in (
            ("journal.jsonl", journals.header(value, fleet_text)),
            ("fleet.yaml", fleet_text.encode()),  # its env: may contain secrets
            ("plan.json", records.canonical_json(value)),
        ):
            records.write_bytes(str(building / name), data, mode=0o600)
        building.rename(directory.path)
        records.sync_directory(str(directory.path.parent))
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise MidstreamError(
            f"{directory.path} cannot be written: {error.strerror}",
            "nothing was started; make room there, then try again",
        ) from error
    return directory


def list_migrations(fleet: Fleet | None = None) -> list[MigrationView]:
    """Return all migrations, newest first; with ``fleet``, those that belong to it."""
    found = map(MigrationDirectory, migration_ids())
    return [each.view() for each in found if fleet is None or each.belongs_to(fleet)]
