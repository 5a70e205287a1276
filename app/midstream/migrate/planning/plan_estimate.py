"""Estimate of bytes, downtime, duration and cost, from earlier measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.migrate import stages
from midstream.migrate.modes.assumptions import DEFAULT_COPY_SPEED
from midstream.migrate.modes.registry import mode_of
from midstream.migrate.modes.work import Rates, Work
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.measured_rates import MIN_COPY_BYTES
from midstream_core.json_types import LoggedRow

READY_INSTALL_SECONDS = 8.0  # to find that the engine's packages are installed and can be imported
MIN_COMPILE_SECONDS = 1.0  # by which a first step is longer that includes the compilation


def downtime_seconds(
    work: Work, predicted: Mapping[str, float], rates: Rates
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return predicted seconds of downtime phases, and phases of unknown duration."""
    unknown = mode_of(work.mode).unknown_phases(work, rates)
    return {name: seconds for name, seconds in predicted.items() if name not in unknown}, unknown


def durations(work: Work, downtime: float | None, rates: Rates) -> dict[str, float | None]:
    """Return the expected seconds of each stage; None: unknown.

    Args:
        work: What there is to do.
        downtime: Predicted seconds of the downtime; None: unknown.
        rates: Measurements of earlier migrations, which replace any formula.
    """
    mode, step = mode_of(work.mode), rates.step or work.step
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


def compile_seconds(curve: Sequence[LoggedRow], compiled: float = 0.0) -> float | None:
    """Return the seconds that the source's newest attempt took to compile.

    None where nothing shows them.

    Args:
        curve: The run's metric rows: without ``compiled``, the first step is longer by the compilation.
        compiled: Seconds that its status reports, 0: none; few if the programs were in the cache of that host.
    """
    if compiled >= MIN_COMPILE_SECONDS:
        return compiled
    step, first = downtime_estimate.step_seconds(curve)
    return first - step if first - step >= MIN_COMPILE_SECONDS else None
