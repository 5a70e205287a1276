"""Estimate of a run's step on a target where it cannot be rehearsed.

The step is compiled, and the estimate is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from midstream.output import Output

if TYPE_CHECKING:
    from midstream.check.check_result import Check
    from midstream.compare.subject import Subject
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host_pool import HostPool


def subject_for(hosts: HostPool, config: str, run_id: str, engine: tuple[str, ...]) -> Callable[[], Subject]:
    """Return a function that reads what is compiled: a config or, without one, a run.

    Args:
        hosts: Connections to the fleet's hosts.
        config: Path of the config; empty: that of the run.
        run_id: The run; used only without a config.
        engine: Flags of the engine.
    """

    def subject() -> Subject:
        from midstream.compare.subject import of_config, of_run_named

        return of_config(config, engine) if config else of_run_named(hosts, run_id, engine)

    return subject


def check_slice(fleet: Fleet, name: str, config: str, engine: tuple[str, ...], output: Output) -> Check:
    """Compile a config's step for the slice of a target; print the estimate as JSON.

    Args:
        fleet: The fleet.
        name: Name of the target.
        config: Path of the config.
        engine: Flags of the engine.
        output: Receives the estimate and the progress.
    """
    from midstream.compare.slice_fit import slice_fit
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter

    hosts = HostPool(fleet)
    try:
        check, row = slice_fit(hosts, name, subject_for(hosts, config, "", engine), reporter(output))
    finally:
        hosts.close()
    if row is not None:
        output.event(row.event())
    return check


def check_busy(fleet: Fleet, name: str, config: str, engine: tuple[str, ...], output: Output) -> Check | None:
    """Compile a config's step for a target on which a check has failed.

    The estimate is printed as JSON. Accelerators of hosts that do not answer are those that they had when they were
    last seen. None where there is no compiler for them.

    Args:
        fleet: The fleet.
        name: Name of the target.
        config: Path of the config.
        engine: Flags of the engine.
        output: Receives the estimate and the progress.
    """
    from midstream.check.check_result import WARN, Check
    from midstream.compare.candidates import (
        Candidate,
        UnreachableTargetError,
        accelerators_of_target,
        price_of_target,
        seen_accelerators,
    )
    from midstream.compare.slice_fit import NAME, candidate_fit
    from midstream.errors import UsageError
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter
    from midstream.operations.fleet_snapshot import fleet_snapshot

    hosts = HostPool(fleet)
    unknown = f"whether a step fits {name} is not known before it can be rehearsed there"
    source = ""
    try:
        try:
            accelerators = accelerators_of_target(fleet, name, fleet_snapshot(hosts))
        except UnreachableTargetError as error:
            seen = seen_accelerators(fleet, name)
            if seen is None:
                why = error.message.removeprefix(f"--with {name}: ")
                hint = f"midstream --compare {config} --with h100x8 compiles for accelerators by name"
                return Check(NAME, WARN, f"{unknown}: {why}", hint)
            accelerators, source = seen
        except UsageError:
            return None
        candidate = Candidate(name, accelerators, name, price_of_target(fleet, name))
        subject = subject_for(hosts, config, "", engine)
        check, row = candidate_fit(hosts, candidate, subject, reporter(output), unknown, source)
    finally:
        hosts.close()
    if row is not None:
        output.event(row.event())
    return check
