"""Estimate of bytes, downtime, duration and cost, from earlier measurements."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from midstream.errors import HostError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.install.environment import EnvironmentNeeds, environment_needs
from midstream.migrate import stages
from midstream.migrate.checkpoint_store import same_store
from midstream.migrate.journal import cost
from midstream.migrate.journal.plan import Estimate, Shape
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.assumptions import DEFAULT_COPY_SPEED
from midstream.migrate.modes.cold import Cold
from midstream.migrate.modes.mode import Mode
from midstream.migrate.modes.work import Rates, Work
from midstream.migrate.planning import downtime_estimate, measured_rates
from midstream.migrate.planning.measured_rates import MIN_COPY_BYTES
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.progress import steps_since

READY_INSTALL_SECONDS = 8.0  # to find that the engine's packages are installed and can be imported
CONCURRENCY = 32  # hosts that are requested at the same time


def estimate(fleet: Fleet, request: Request, ends: Ends, contents: SourceContents, shape: Shape) -> Estimate:
    """Estimate bytes, downtime, duration and cost of a migration of the engine's run.

    Args:
        fleet: The fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        contents: What the source has of the run.
        shape: Devices and batch on both sides, and what changes of the run.
    """
    run, target = ends.run, ends.target
    rates = _rates(ends, contents.checkpoint_bytes)
    there = measured_rates.step_seconds_on(run.curve, run.lineage, target.name)
    rates = rates if there is None else replace(rates, step=there)
    steps_left = max(0, shape.num_train_steps - ends.done)
    needs = _environment_needs(fleet, ends)
    work = replace(
        _work(request, ends, contents),
        further_hosts=len(ends.data_hosts) - 1,
        environment_ready=needs.ready,
        healthy_steps=min(request.healthy_steps, steps_left),
        replayed_steps=steps_since(run, contents.newest),
        compile=ends.pace.compile_seconds(ends.status.compiled_seconds),
    )
    predicted = downtime_estimate.predict(
        ends.mode, ends.pace, work.checkpoint_bytes, rates, running=run.running, copied_bytes=work.copied_bytes(rates)
    )
    estimated = _estimate(ends, contents, work, rates, predicted)
    prices = (_price(fleet, ends.source_hosts), _price(fleet, target.hosts))
    return replace(
        estimated,
        cost_per_hour=prices,
        cost=cost.estimate(
            prices,
            prepare_seconds=ends.mode.preparation_seconds(
                work.sent_data(rates), work.checkpoint_bytes, rates, work.compile or 0.0, work.copied_bytes(rates)
            ),
            downtime=sum(estimated.predicted_seconds.values()),
            step_before=work.step,
            step_after=rates.step,
            tokens=shape.train_batch_size * contents.seq_len,
            steps_left=steps_left,
        ),
        duration={**({stages.IMPORT: None} if contents.imported is not None else {}), **estimated.duration},
        environment_ready=needs.ready,
        install_bytes=needs.download,
    )


def trainer_estimate(request: Request, ends: Ends, contents: SourceContents) -> Estimate:
    """Estimate bytes and seconds of a migration of another trainer's run.

    Its downtime is that of a cold migration: its standby rehearses and ends.
    """
    rates = _rates(ends, contents.checkpoint_bytes)
    work = _work(request, ends, contents)
    predicted = downtime_estimate.predict(
        Cold(), ends.pace, work.checkpoint_bytes, rates, running=ends.run.running, copied_bytes=work.copied_bytes(rates)
    )
    predicted["compile"] = 0.0  # part of the trainer's start, which `provision` has
    estimated = _estimate(ends, contents, work, rates, predicted)
    stages_left = {name: seconds for name, seconds in estimated.duration.items() if name != stages.COMPILE}
    return replace(estimated, duration=stages_left)


def _rates(ends: Ends, size: int) -> Rates:
    return measured_rates.rates_between(
        measured_rates.past_migrations(), ends.run.run_id, ends.run.host, ends.target.hosts[0], ends.mode.name, size
    )


def _work(request: Request, ends: Ends, contents: SourceContents) -> Work:
    return Work(
        checkpoint_bytes=contents.checkpoint_bytes,
        data_bytes=contents.data_bytes,
        copies_checkpoint=contents.checkpoint is not None,
        shared_store=same_store(ends.source_store, ends.target_store),
        environment_ready=None,
        steps_compared=min(request.certify_steps, contents.steps_lost),
        healthy_steps=request.healthy_steps,
        step=ends.pace.step,
        compile=0.0,
    )


def _estimate(ends: Ends, contents: SourceContents, work: Work, rates: Rates, predicted: dict[str, float]) -> Estimate:
    phases, unknown = downtime_seconds(ends.mode, work, predicted, rates)
    return Estimate(
        checkpoint_bytes=work.checkpoint_bytes,
        data_bytes=max(work.data_bytes or (0,)),
        steps_lost=contents.steps_lost,
        predicted_seconds=phases,
        unknown=unknown,
        duration=durations(ends.mode, work, None if unknown else sum(phases.values()), rates),
        assumptions=assumptions(work, rates, ends.run.host, ends.target.name),
    )


def downtime_seconds(
    mode: Mode, work: Work, predicted: dict[str, float], rates: Rates
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return predicted seconds of downtime phases, and phases of unknown duration."""
    unknown = mode.unknown_phases(work, rates)
    return {name: seconds for name, seconds in predicted.items() if name not in unknown}, unknown


def durations(mode: Mode, work: Work, downtime: float | None, rates: Rates) -> dict[str, float | None]:
    """Return the expected seconds of each stage; None: unknown.

    Args:
        mode: Mode of the migration.
        work: What there is to do.
        downtime: Predicted seconds of the downtime; None: unknown.
        rates: Measurements of earlier migrations, which replace any formula.
    """
    step = rates.step or work.step
    install = rates.installs.get(bool(work.environment_ready))
    if install is None and work.environment_ready:
        install = READY_INSTALL_SECONDS
    return {
        stages.INSTALL: None if work.environment_ready is None else install,
        stages.DATA: None if work.data_bytes is None else work.sent_data(rates) / (rates.copy or DEFAULT_COPY_SPEED),
        **mode.prepared_stages(work, rates),
        stages.DOWNTIME: downtime,
        stages.CERTIFY: rates.stages.get(stages.CERTIFY, mode.certify_seconds(work, rates)),
        stages.HEALTHY: work.healthy_steps * step if step or not work.healthy_steps else None,
    }


def assumptions(work: Work, rates: Rates, source: str, target: str) -> tuple[str, ...]:
    """Return a line for each rate that the estimates assume.

    Nothing has measured such a rate yet.
    """
    lines = list[str]()
    count = work.sent_data(rates) + (0 if work.shared_store else work.checkpoint_bytes)
    if rates.copy is None and count >= MIN_COPY_BYTES:
        lines.append(f"copies at {DEFAULT_COPY_SPEED / 1e6:.0f} MB/s: not measured between {source} and {target} yet")
    if rates.step is None and work.step:
        lines.append(f"{work.step:.3g} s a step, as on {source}: not measured on {target} yet")
    return tuple(lines)


def _environment_needs(fleet: Fleet, ends: Ends) -> EnvironmentNeeds:
    """Return what has to be installed on the target's hosts, together."""

    def needs_of(host: Host) -> EnvironmentNeeds:
        try:
            return environment_needs(host, fleet.hosts[host.name])
        except HostError:
            return EnvironmentNeeds(None, 0)  # the preflight reports why

    with ThreadPoolExecutor(CONCURRENCY) as pool:
        needs = list(pool.map(needs_of, ends.data_hosts))
    readiness = [need.ready for need in needs if need.ready is not None]
    ready = all(readiness) if len(readiness) == len(needs) or not all(readiness) else None
    return EnvironmentNeeds(ready, sum(need.download for need in needs))


def _price(fleet: Fleet, names: Sequence[str]) -> float | None:
    """Return the price of the hosts together, an hour; None where one has no price."""
    prices = [fleet.hosts[name].price_per_hour for name in names]
    return sum(price for price in prices if price is not None) if None not in prices else None
