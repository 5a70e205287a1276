"""Where migrations are kept: `$MIDSTREAM_STATE/migrations/<id>/`, one directory each.

plan.json          what is to be done; written once, prepare may amend it (journaled)
fleet.yaml         the fleet file as it was, so that a continued migration reaches the same machines
journal.jsonl      what was done
ledger.json        the downtime, predicted against measured
certificate.json   the proof; certificate.md is the same for people, with the curve in certificate.svg
.lock              held by the process that carries the migration out
request            what a person asked of that process: "rollback"
request-mode       that an overtake is to go on as a handover: "handover"
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import model
from midstream.migrate.journal import JournalReader, outcome
from midstream_engine import records

PATIENCE = 0.5  # seconds


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
        self.ledger_file = self.path / "ledger.json"
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
        return self.journal_file.stat().st_size if self.journal_file.exists() else 0

    def plan(self) -> model.Plan:
        return model.Plan.from_json(records.read_json(str(self.plan_file)))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the migration: one process at a time carries it out. MidstreamError where another one does."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
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

    def is_held(self) -> bool:
        """Whether some process carries it out right now."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def view(self) -> model.MigrationView:
        """What its files tell. RecordError where the plan is missing or torn."""
        known = _KNOWN.setdefault(self.path, _Known(self))
        return known.view()


class _Known:
    """A migration that is looked at again and again: a file that has not changed is not read again."""

    def __init__(self, directory: MigrationDirectory):
        self._directory = directory
        self._lock = threading.Lock()
        self._reader = JournalReader(directory.journal_file)
        self._mark: tuple[object, ...] = ()
        self._view: model.MigrationView | None = None

    def view(self) -> model.MigrationView:
        """The same object until something changes."""
        directory = self._directory
        with self._lock:
            held = directory.is_held()
            files = (directory.plan_file, directory.journal_file, directory.ledger_file, directory.certificate_file)
            mark = (held, *map(_signature, files))
            if self._view is None or mark != self._mark:
                self._view, self._mark = self._read(held), mark
            return self._view

    def _read(self, held: bool) -> model.MigrationView:
        directory = self._directory
        events = self._reader.events()
        now = outcome(events)
        state = now.outcome
        if held and not now.ended:
            state = model.RUNNING
        ledger = records.read_json_or_none(str(directory.ledger_file))
        certificate = records.read_json_or_none(str(directory.certificate_file))
        return model.MigrationView(
            directory.migration,
            directory.plan(),
            state or model.INTERRUPTED,
            now.phase,
            events,
            model.Ledger.from_json(ledger) if ledger else None,
            model.Certificate.from_json(certificate) if certificate else None,
            now.finished,
            now.error,
        )


_KNOWN: dict[Path, _Known] = {}


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def migration_ids() -> list[str]:
    """Newest first."""
    try:
        names = os.listdir(migrations_directory())
    except FileNotFoundError:
        return []
    return sorted((name for name in names if (migrations_directory() / name / "plan.json").exists()), reverse=True)


def create(plan: model.Plan, fleet_text: str) -> MigrationDirectory:
    """A directory for a new migration, with its plan and fleet file."""
    directory = MigrationDirectory(plan.migration)
    directory.path.mkdir(parents=True)
    # Its env: may hold what others are not to read.
    records.write_bytes(str(directory.fleet_file), fleet_text.encode(), mode=0o600)
    records.write_json(str(directory.plan_file), plan.to_json())
    return directory


def view(migration: str) -> model.MigrationView:
    return MigrationDirectory.find(migration).view()


def list_migrations() -> list[model.MigrationView]:
    """Newest first. One whose plan cannot be read is left out."""
    views = []
    for name in migration_ids():
        try:
            views.append(MigrationDirectory(name).view())
        except (records.RecordError, TypeError, KeyError):
            continue
    return views
