"""Where migrations are kept: `$MIDSTREAM_STATE/migrations/<id>/`, one directory each, for its owner alone (0700).

journal.jsonl      plan and fleet file once more, then what was done: enough to go on with
plan.json          what is to be done; written once
fleet.yaml         the fleet file as it was, so that a continued migration reaches the same machines
downtime.json        the downtime, predicted against measured
run.yaml           the run's config, where a rollback leaves a run that has to be started again
certificate.json   the proof; certificate.md is the same for people, with the curve in certificate.svg
.lock              held by the process that carries the migration out
request            what a person asked of that process: "rollback"
request-mode       that a live migration is to go on as a warm migration: "warm"

Each of them may be damaged. What is needed is read from the journal then, and the view names what is wrong.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.migrate import model
from midstream.migrate.execution import damaged_files, fleet_scope
from midstream.migrate.execution import journal as journals
from midstream.migrate.execution.journal import JournalReader, outcome
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

PATIENCE = 0.5  # seconds
START_TIMEOUT = 30.0  # seconds in which the process of a migration has to begin
FILES = ("journal.jsonl", "plan.json", "fleet.yaml", "downtime.json", "certificate.json", ".lock", "process.log")


def state_directory() -> Path:
    """`$MIDSTREAM_STATE`, by default `~/.local/state/midstream`."""
    return Path(os.environ.get("MIDSTREAM_STATE") or "~/.local/state/midstream").expanduser()


def migrations_directory() -> Path:
    return state_directory() / "migrations"


def new_id(run_id: str) -> str:
    """Sorts by time, says which run, and never repeats: ``20261121-101502-nano-3fa9``."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{run_id[:40]}-{secrets.token_hex(2)}"


class MigrationDirectory:
    """The files of one migration."""

    def __init__(self, migration: str):
        self.migration = migration
        self.path = migrations_directory() / migration
        self.plan_file = self.path / "plan.json"
        self.fleet_file = self.path / "fleet.yaml"
        self.journal_file = self.path / "journal.jsonl"
        self.ledger_file = self.path / "downtime.json"
        self.certificate_file = self.path / "certificate.json"
        self.page_file = self.path / "certificate.md"
        self.picture_file = self.path / "certificate.svg"
        self.request_file = self.path / "request"
        self.mode_file = self.path / "request-mode"
        self.log_file = self.path / "process.log"
        self._lock_file = self.path / ".lock"

    @classmethod
    def find(cls, migration: str) -> MigrationDirectory:
        """The one with this id, or with the only id that begins so. UsageError otherwise."""
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
            f"known: {', '.join(known[:5])}"
            if known
            else "there are none yet: midstream --migrate RUN --to TARGET starts one",
        )

    def journal_size(self) -> int:
        """Bytes of the journal: where a follower begins who wants what comes next."""
        return self.journal_file.stat().st_size if self.journal_file.is_file() else 0

    def journal_lost(self) -> bool:
        """Whether the journal is missing, empty or no file: a new migration has one from its first moment on."""
        return not self.journal_size()

    # ------------------------------------------------------------------------------------------ what it is about

    def plan(self) -> model.Plan:
        """The plan, from the journal where plan.json is damaged. MidstreamError where both are."""
        return self._plan(self._journal().plan)

    def _journal(self) -> journals.Content:
        """The journal; one without lines where it cannot be read."""
        try:
            return journals.read(self.journal_file)
        except records.RecordError:
            return journals.Content()

    def _plan(self, journaled: object) -> model.Plan:
        try:
            return model.Plan.from_json(records.read_json(str(self.plan_file)), str(self.plan_file))
        except (OSError, records.RecordError) as error:
            why = error
        try:
            return model.Plan.from_json(journaled, str(self.journal_file))
        except records.RecordError:
            raise self._lost(self.plan_file, why) from None

    def fleet(self) -> Fleet:
        """The fleet as it was planned with, from the journal where fleet.yaml is damaged. MidstreamError where both
        are."""
        content = self._journal()
        return self._fleet(self._plan(content.plan), content.fleet)

    def _fleet(self, plan: model.Plan, journaled: str | None) -> Fleet:
        from midstream.fleet.fleet_file import load_fleet, parse_fleet

        try:
            self._check_fleet(plan, journaled)
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

    def ledger(self) -> model.DowntimeReport | None:
        """None where there is none, or one that is damaged."""
        return damaged_files.read_or_none(self.ledger_file, model.DowntimeReport.from_json)

    def certificate(self) -> model.Certificate | None:
        """None where there is none, or one that is damaged."""
        return damaged_files.read_or_none(self.certificate_file, model.Certificate.from_json)

    def restore(self, journal: journals.Journal) -> list[str]:
        """Write plan.json, fleet.yaml and the journal's first lines again, each where it is damaged, from the others.
        A line for each that was restored. MidstreamError where nothing has its content."""
        content = self._journal()
        plan = self._plan(content.plan)
        self._fleet(plan, content.fleet)
        said = []
        if why := damaged_files.problem_of(self.plan_file, self._check_plan):
            self._put(self.plan_file, records.canonical_json(plan.to_json()))
            said.append(f"{self.plan_file.name} {why}: restored from the journal")
        if why := damaged_files.problem_of(self.fleet_file, lambda: self._check_fleet(plan, content.fleet)):
            self._put(self.fleet_file, (content.fleet or "").encode())
            said.append(f"{self.fleet_file.name} {why}: restored from the journal")
        if not journal.headed:
            journal.head(plan.to_json(), self.fleet_file.read_text())
        return said

    def _check_plan(self) -> None:
        model.Plan.from_json(records.read_json(str(self.plan_file)), self.plan_file.name)

    def _check_fleet(self, plan: model.Plan | None, journaled: str | None) -> None:
        """UsageError where the file is damaged: it cannot be read, or lacks a host that the plan names. One that says
        what was planned with is not."""
        from midstream.fleet.fleet_file import load_fleet

        with suppress(OSError, UnicodeDecodeError):  # load_fleet names what is wrong
            if journaled is not None and self.fleet_file.read_text() == journaled:
                return
        fleet = load_fleet(self.fleet_file)
        missing = [name for name in (plan.source, plan.target) if name not in fleet.target_names] if plan else []
        if missing and not fleet.comes_and_goes:
            raise UsageError(f"{self.fleet_file} has no host {missing[0]}, which the plan names")

    @staticmethod
    def _put(file: Path, data: bytes) -> None:
        damaged_files.set_aside(file)
        records.write_bytes(str(file), data, mode=0o600)

    # ------------------------------------------------------------------------------------------ what a person asked

    def ask_for_rollback(self) -> None:
        damaged_files.set_aside(self.request_file)
        records.write_bytes(str(self.request_file), b"rollback\n")

    def rollback_requested(self) -> bool:
        """Whether a person asked for it. A request of any other content is none."""
        return damaged_files.request(self.request_file) == damaged_files.ROLLBACK

    def ask_for_handover(self) -> None:
        damaged_files.set_aside(self.mode_file)
        records.write_bytes(str(self.mode_file), f"{model.WARM}\n".encode())

    def withdraw_request(self) -> None:
        with suppress(OSError):  # one that is no file was none
            self.request_file.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------ who carries it out

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the migration: one process at a time carries it out. MidstreamError where another one does."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise MidstreamError(
                f"{self._lock_file} cannot be opened: {error.strerror}", f"move it away: mv {self._lock_file} /tmp"
            ) from error
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    if time.monotonic() >= deadline:
                        message = f"migration {self.migration} is being carried out by another process"
                        raise MidstreamError(message) from error
                time.sleep(0.01)  # whoever only looks whether it is held holds it for an instant
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
            yield
        finally:
            os.close(descriptor)

    def is_locked(self) -> bool:
        """Whether some process carries it out right now."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # there is none, or what is there can be held by nobody
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def view(self) -> model.MigrationView:
        """What its files say. Those that are damaged are named in ``damage``."""
        return self._known().view()

    def belongs_to(self, fleet: Fleet) -> bool:
        """Whether it moves a run between hosts of this fleet: one of the same file, or one in which its hosts have the
        same names and are the same places. One whose hosts cannot be read is shown rather than hidden."""
        return self._known().belongs_to(fleet)

    def _known(self) -> _Known:
        return _KNOWN.setdefault(self.path, _Known(self))


class _Known:
    """A migration that is looked at again and again: a file that has not changed is not read again."""

    def __init__(self, directory: MigrationDirectory):
        self._directory = directory
        self._lock = threading.Lock()
        self._reader = JournalReader(directory.journal_file)
        self._mark: tuple[object, ...] = ()
        self._view: model.MigrationView | None = None
        self._fleet: Fleet | None = None
        self._fleet_mark: object = ()

    def view(self) -> model.MigrationView:
        """The same object until something changes."""
        directory = self._directory
        with self._lock:
            held = directory.is_locked()
            files = (
                directory.plan_file, directory.fleet_file, directory.journal_file, directory.ledger_file,
                directory.certificate_file, directory.request_file,
            )  # fmt: skip
            mark = (held, begins := self._begins(), *map(_signature, files))
            if self._view is None or mark != self._mark:
                self._view, self._mark = self._read(held, begins), mark
            return self._view

    def _begins(self) -> bool:
        """Whether the journal is so new that its process may still be starting."""
        try:
            return time.time() - self._directory.journal_file.stat().st_mtime < START_TIMEOUT
        except OSError:
            return False

    def _read(self, held: bool, begins: bool) -> model.MigrationView:
        directory = self._directory
        events = self._reader.events()
        now = outcome(events)
        found: list[str] = []
        # What is being written at this moment has no end yet.
        writing = held and self._reader.torn and not self._reader.content.damaged
        if (wrong := self._reader.damage) and not writing:
            found.append(f"{directory.journal_file.name} {wrong}")
        if wrong := damaged_files.problem_of(directory.plan_file, directory._check_plan):
            found.append(f"{directory.plan_file.name} {wrong}")
        content = self._reader.content
        try:
            plan = directory._plan(content.plan)
        except MidstreamError:
            plan = None
        if wrong := damaged_files.problem_of(directory.fleet_file, lambda: directory._check_fleet(plan, content.fleet)):
            found.append(f"{directory.fleet_file.name} {wrong}")
        for file, check in (
            (
                directory.ledger_file,
                lambda: damaged_files.parsed(directory.ledger_file, model.DowntimeReport.from_json),
            ),
            (
                directory.certificate_file,
                lambda: damaged_files.parsed(directory.certificate_file, model.Certificate.from_json),
            ),
            (directory.request_file, lambda: damaged_files.check_request(directory.request_file)),
        ):
            if os.path.lexists(file) and (wrong := damaged_files.problem_of(file, check)):
                found.append(f"{file.name} {wrong}")
        result = next((event.detail for event in reversed(events) if event.event == "result"), {})
        state = model.DAMAGED if plan is None else now.outcome or model.INTERRUPTED
        if (held or (begins and not events and plan)) and not now.ended:
            state = model.RUNNING
        return model.MigrationView(
            directory.migration,
            plan or model.Plan.unknown(directory.migration),
            state,
            now.phase,
            events,
            directory.ledger() or damaged_files.journaled(result.get("downtime"), model.DowntimeReport.from_json),
            directory.certificate() or damaged_files.journaled(result.get("certificate"), model.Certificate.from_json),
            now.finished,
            now.error,
            tuple(found),
        )

    def belongs_to(self, fleet: Fleet) -> bool:
        plan = self.view().plan
        return plan.source == model.UNKNOWN or fleet_scope.belongs(plan, lambda: self._own_fleet(plan), fleet)

    def _own_fleet(self, plan: model.Plan) -> Fleet | None:
        """The fleet that it was planned with; None where no file has it any more."""
        with self._lock:
            mark = (_signature(self._directory.fleet_file), self._reader.content.fleet)
            if mark != self._fleet_mark:
                try:
                    self._fleet = self._directory._fleet(plan, self._reader.content.fleet)
                except MidstreamError:
                    self._fleet = None
                self._fleet_mark = mark
            return self._fleet


_KNOWN: dict[Path, _Known] = {}


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def migration_ids() -> list[str]:
    """Newest first: directories that hold any of a migration's files, damaged or not."""
    try:
        names = os.listdir(migrations_directory())
    except OSError:
        return []
    found = [name for name in names if not name.startswith(".") and _is_migration(migrations_directory() / name)]
    return sorted(found, reverse=True)


def _is_migration(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in FILES)


def create(plan: model.Plan, fleet_text: str) -> MigrationDirectory:
    """A directory for a new migration, with its plan, its fleet file and its journal's first lines. It is complete or
    not there: MidstreamError where it cannot be written."""
    directory = MigrationDirectory(plan.migration)
    building = directory.path.with_name(f".{plan.migration}.{os.getpid()}")
    try:
        directory.path.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir(mode=0o700)
        value = plan.to_json()
        for name, data in (
            ("journal.jsonl", journals.header(value, fleet_text)),
            ("fleet.yaml", fleet_text.encode()),  # its env: may hold what others are not to read
            ("plan.json", records.canonical_json(value)),
        ):
            records.write_bytes(str(building / name), data, mode=0o600)
        building.rename(directory.path)
        records.sync_directory(str(directory.path.parent))
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise MidstreamError(
            f"{directory.path} cannot be written: {error.strerror}",
            "nothing was begun; make room there, then try again",
        ) from error
    return directory


def view(migration: str) -> model.MigrationView:
    return MigrationDirectory.find(migration).view()


def list_migrations(fleet: Fleet | None = None) -> list[model.MigrationView]:
    """Newest first, those with damaged files too. ``fleet``: those alone that belong to it."""
    found = map(MigrationDirectory, migration_ids())
    return [each.view() for each in found if fleet is None or each.belongs_to(fleet)]
