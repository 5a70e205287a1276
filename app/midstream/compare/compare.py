"""Comparison of candidates for a configuration or a run.

Steps: compile for each, estimate, calibrate, sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midstream.compare.calibration import Pair, calibration, remember
from midstream.compare.candidates import Candidate, accelerators_of_target
from midstream.compare.comparison import ComparisonRow, row
from midstream.compare.compiler import Compilers, known_estimate
from midstream.compare.device_names import accelerators_of_devices
from midstream.compare.subject import Subject
from midstream.errors import MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.migrate.planning.measured_rates import PastMigration, past_migrations
from midstream_core.accelerator_types import AcceleratorType


def compare(
    fleet: Fleet, subject: Subject, candidates: Sequence[Candidate], compilers: Compilers
) -> Iterator[ComparisonRow]:
    """Yield a row for each candidate, in their order.

    A candidate that cannot be compiled for has a row with the error; the others are still compared.

    Args:
        fleet: The fleet, for earlier migrations to its targets.
        subject: What is compared.
        candidates: The accelerators.
        compilers: The compilers.
    """
    migrations = past_migrations() if subject.run is not None else []
    for candidate in candidates:
        if candidate.problem:
            yield ComparisonRow(candidate, error=candidate.problem)
            continue
        try:
            estimate = compilers.estimate(subject.config, subject.overrides, candidate.accelerators)
        except Cancelled:
            raise
        except MidstreamError as error:
            message = error.message.removeprefix(f"{candidate.accelerators.name}: ")
            yield ComparisonRow(candidate, error=message + (f" ({error.hint})" if error.hint else ""))
            continue
        pairs = remember(measured_pairs(fleet, subject, migrations))
        yield row(subject, candidate, estimate, calibration(pairs, candidate.accelerators.kind), migrations)


def measured_pairs(fleet: Fleet, subject: Subject, migrations: Sequence[PastMigration]) -> Iterator[Pair]:
    """Yield pairs of measured and estimated steps of the run: of now, of rehearsals."""
    run = subject.run
    if run is None:
        return
    measured: list[tuple[AcceleratorType | None, float]] = [(accelerators_of_devices(run.kinds), run.step_seconds)]
    for migration in migrations:
        if migration.run_id == run.run_id and migration.rehearsed_step_seconds > 0:
            measured.append((_accelerators_of_host(fleet, migration.target), migration.rehearsed_step_seconds))
    for accelerators, seconds in measured:
        estimate = known_estimate(subject.config, subject.overrides, accelerators) if accelerators and seconds else None
        if accelerators is not None and estimate is not None and estimate.step_seconds:
            yield Pair(run.run_id, accelerators.topology, accelerators.kind, estimate.step_seconds, seconds)


def _accelerators_of_host(fleet: Fleet, host: str) -> AcceleratorType | None:
    """Return the accelerators of a worker's slice; None for other hosts."""
    for name in fleet.targets:
        if fleet.slurm_of(name) is not None:  # its host is a login node
            continue
        try:
            if host in fleet.hosts_of(name) or host.startswith(f"{name}-"):
                return accelerators_of_target(fleet, name, None)
        except UsageError:
            continue
    return None
