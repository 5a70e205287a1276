"""Directory of a migration, readable by its owner alone (0700).

Path: `$MIDSTREAM_STATE/migrations/<id>/`.

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

import os
import secrets
import shutil
import time
from pathlib import Path

from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.migrate.journal import journal as journals
from midstream.migrate.journal.cached_view import CachedView
from midstream.migrate.journal.migration_files import MigrationFiles
from midstream.migrate.journal.migration_view import MigrationView
from midstream.migrate.journal.plan import Plan
from midstream.ownership.operator_key import made_key_file
from midstream.state_directory import make_directory, migrations_directory
from midstream.suggestions import did_you_mean
from midstream_core import records

FILES = ("journal.jsonl", "plan.json", "fleet.yaml", "downtime.json", "certificate.json", ".lock", "process.log")


def new_id(run_id: str) -> str:
    """Return a unique id that sorts by time: ``20261121-101502-nano-3fa9``."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{run_id[:40]}-{secrets.token_hex(2)}"


class MigrationDirectory(MigrationFiles):
    """The directory of one migration, and its view."""

    @classmethod
    def find(cls, migration: str) -> MigrationDirectory:
        """Return the one with this id or unique prefix of an id. UsageError otherwise."""
        ids = migration_ids()
        matches = [name for name in ids if name == migration] or [name for name in ids if name.startswith(migration)]
        if len(matches) == 1:
            return cls(matches[0])
        if matches:
            raise UsageError(f"migration {migration!r} is ambiguous: {', '.join(matches)}", "give more of its id")
        raise UsageError(
            f"no migration {migration!r} under {migrations_directory()}",
            did_you_mean(migration, ids) or f"known: {', '.join(ids[:5])}"
            if ids
            else "there are none yet: midstream --migrate RUN --to TARGET starts one",
        )

    def view(self) -> MigrationView:
        """Return the migration as its files describe it; ``damage`` names damaged ones."""
        return self._cached().view()

    def belongs_to(self, fleet: Fleet) -> bool:
        """Return whether it migrates a run between hosts of this fleet, see `fleet_scope`.

        A migration whose hosts cannot be read is shown, not hidden.
        """
        return self._cached().belongs_to(fleet)

    def _cached(self) -> CachedView:
        return _CACHED_VIEWS.setdefault(self.path, CachedView(self))


_CACHED_VIEWS: dict[Path, CachedView] = {}


def migration_ids() -> list[str]:
    """Return ids of directories with any file of a migration, newest first."""
    try:
        names = os.listdir(migrations_directory())
    except OSError:
        return []
    migrations = [name for name in names if not name.startswith(".") and _is_migration(migrations_directory() / name)]
    return sorted(migrations, reverse=True)


def _is_migration(path: Path) -> bool:
    return any(os.path.lexists(path / name) for name in FILES)


def create(plan: Plan, fleet_text: str) -> MigrationDirectory:
    """Create a migration's directory with plan, fleet file and first journal lines.

    On an error no directory is left. The operator's key is made before, so that each copy of the state directory that
    has the migration has the key that signs it too.

    Raises:
        MidstreamError: it cannot be written.
    """
    made_key_file()
    directory = MigrationDirectory(plan.migration)
    building = directory.path.with_name(f".{plan.migration}.{os.getpid()}")
    try:
        make_directory(directory.path.parent)
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
    directories = map(MigrationDirectory, migration_ids())
    return [directory.view() for directory in directories if fleet is None or directory.belongs_to(fleet)]


def open_migrations(fleet: Fleet, run_id: str) -> list[MigrationView]:
    """Return the migrations of a run that have not ended, newest first."""
    return [view for view in list_migrations(fleet) if view.plan.run_id == run_id and view.open]
