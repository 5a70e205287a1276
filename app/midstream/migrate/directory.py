"""Where migrations are kept: `$MIDSTREAM_STATE/migrations/<id>/`, one directory each.

plan.json          what is to be done; written once, prepare may amend it (journaled)
fleet.yaml         the fleet file as it was, so that a continued migration reaches the same machines
journal.jsonl      what was done
ledger.json        the downtime, predicted against measured
certificate.json   the proof; certificate.md is the same for people
.lock              held by the process that carries the migration out
request            what a person asked of that process: "rollback"
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from midstream.errors import MidstreamError, UsageError
from midstream.migrate import model
from midstream.migrate.journal import read_events
from midstream_engine import records


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
        self.request_file = self.path / "request"
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

    def plan(self) -> model.Plan:
        return model.Plan.from_json(records.read_json(str(self.plan_file)))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the migration: one process at a time carries it out. MidstreamError where another one does."""
        descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise MidstreamError(f"migration {self.migration} is being carried out by another process") from error
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
        plan = self.plan()
        events = read_events(self.journal_file)
        phase, state, error, finished = model.PLAN, "", "", False
        for event in events:
            if event.event == "phase":
                phase = event.phase
                if event.phase == model.FINISH and event.state == model.DONE:
                    finished = True
                if event.state == model.FAILED:
                    error = event.message
            elif event.event == "result":
                state = str(event.detail.get("outcome", ""))
                error = event.message if not event.detail.get("ok") else ""
            elif event.event == "note" and event.state == "resumed":
                state = ""
        if self.is_held() and state != model.COMPLETED:
            state = model.RUNNING
        ledger = records.read_json_or_none(str(self.ledger_file))
        certificate = records.read_json_or_none(str(self.certificate_file))
        return model.MigrationView(
            self.migration,
            plan,
            state or model.INTERRUPTED,
            phase,
            tuple(events),
            model.Ledger.from_json(ledger) if ledger else None,
            model.Certificate.from_json(certificate) if certificate else None,
            finished,
            error,
        )


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
    directory.fleet_file.write_text(fleet_text)
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
