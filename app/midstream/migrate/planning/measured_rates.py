"""Rates between two hosts, measured by earlier migrations, copies and rehearsals."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from midstream.errors import MidstreamError
from midstream.migrate.journal import migration_directory
from midstream.migrate.journal.facts import facts_of
from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.stage_times import stage_times
from midstream.migrate.modes.work import Rates
from midstream.migrate.stages import CERTIFY, COMPILE, DOWNTIME_PHASES, INSTALL, REHEARSE, REPLAY, START
from midstream_core import records
from midstream_core.json_types import LoggedRow

MAX_MIGRATIONS = 40  # newest migrations that are read
MAX_SAMPLES = 5  # newest of those between the same two hosts
MIN_COPY_BYTES = 16e6  # the time of a smaller copy is not determined by the link
SCALED_PHASES = frozenset({"save", "copy", "verify", "restore"})  # their time grows with the size of the state
STEP_SAMPLES = 16  # newest steps on the target, for its step time


@dataclass(frozen=True)
class PastMigration:
    """Measurements of an earlier migration."""

    run_id: str
    source: str
    target: str  # host
    mode: str
    size: int  # bytes of the state
    measured: Mapping[str, float] = field(default_factory=dict[str, float])
    copies: tuple[tuple[int, float], ...] = ()  # (bytes, seconds)
    rehearsed_step_seconds: float = 0.0  # on its target; 0: not measured
    stages: Mapping[str, float] = field(default_factory=dict[str, float])  # seconds of `duration.stages`
    environment_ready: bool | None = None  # on its target, before it; None: not known


def rates_between(
    migrations: Iterable[PastMigration], run_id: str, source: str, target: str, mode: str, size: int
) -> Rates:
    """Take rates for a migration between two hosts from earlier ones.

    Args:
        migrations: Earlier migrations, newest first.
        run_id: The run; steps of other runs take another time.
        source: Host that the run is on.
        target: Host that it migrates to.
        mode: Mode of the migration.
        size: Bytes of the state now.
    """
    migrations = list(migrations)
    between = [migration for migration in migrations if (migration.source, migration.target) == (source, target)]
    copies = [
        count / seconds
        for migration in between
        for count, seconds in migration.copies
        if count >= MIN_COPY_BYTES and seconds > 0
    ]
    steps = [
        migration.rehearsed_step_seconds
        for migration in between
        if migration.run_id == run_id and migration.rehearsed_step_seconds > 0
    ]
    same_mode = [migration for migration in between if migration.mode == mode and migration.measured][:MAX_SAMPLES]
    entries = {
        name: statistics.median(
            migration.measured.get(name, 0.0) * _growth(name, migration.size, size) for migration in same_mode
        )
        for name in (DOWNTIME_PHASES if same_mode else ())
    }
    there = [migration for migration in migrations if migration.target == target]
    own = [migration for migration in there if migration.run_id == run_id]
    return Rates(
        statistics.median(copies[:MAX_SAMPLES]) if copies else None,
        steps[0] if steps else None,
        entries,
        _stage_medians({START: there, COMPILE: own, REHEARSE: own, REPLAY: own, CERTIFY: [*same_mode]}),
        _install_medians(there),
    )


def _stage_medians(of: Mapping[str, Sequence[PastMigration]]) -> dict[str, float]:
    """Return the median of each stage over the newest migrations that measured it."""
    samples = {
        name: [migration.stages[name] for migration in timed if name in migration.stages][:MAX_SAMPLES]
        for name, timed in of.items()
    }
    return {name: statistics.median(seconds) for name, seconds in samples.items() if seconds}


def _install_medians(migrations: Sequence[PastMigration]) -> dict[bool, float]:
    install_medians = dict[bool, float]()
    for ready in (False, True):
        alike = [migration for migration in migrations if migration.environment_ready is ready]
        seconds = [migration.stages[INSTALL] for migration in alike if INSTALL in migration.stages]
        if seconds:
            install_medians[ready] = statistics.median(seconds[:MAX_SAMPLES])
    return install_medians


def _growth(phase: str, before: int, now: int) -> float:
    return max(1.0, now / before) if phase in SCALED_PHASES and before >= MIN_COPY_BYTES else 1.0


def step_seconds_on(curve: Sequence[LoggedRow], lineage: records.Lineage | None, target: str) -> float | None:
    """Return the run's seconds a step on ``target``; None if it trained too little."""
    attempts = {entry.attempt for entry in (lineage.entries if lineage else ()) if entry.target == target}
    seconds = [
        row["throughput/duration"] for row in curve if row.get("attempt") in attempts and "throughput/duration" in row
    ]
    return statistics.median(seconds[-STEP_SAMPLES:]) if len(seconds) >= STEP_SAMPLES else None


def past_migrations() -> list[PastMigration]:
    """Read the measurements of the migrations started on this machine, newest first."""
    migrations: list[PastMigration] = []
    for name in migration_directory.migration_ids()[:MAX_MIGRATIONS]:
        directory = migration_directory.MigrationDirectory(name)
        try:
            plan, events = directory.plan(), read_events(directory.journal_file)
        except (records.RecordError, MidstreamError):
            continue  # written by an older version, or damaged
        report = directory.downtime()
        facts = facts_of(events)
        copies = [(copy.bytes, copy.seconds) for copy in (facts.rehearsal_copy, facts.state_copy) if copy is not None]
        migrations.append(
            PastMigration(
                plan.run_id,
                plan.source,
                plan.target_host,
                "" if facts.fallback_reason else plan.mode,
                plan.estimate.checkpoint_bytes,
                report.measured if report else {},
                tuple(copies),
                facts.rehearsed_step_seconds or 0.0,
                stage_times(events).measured,
                plan.estimate.environment_ready,
            )
        )
    return migrations
