"""Estimate of bytes, downtime, duration and cost, from earlier measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from midstream.migrate.journal import stages
from midstream.migrate.journal.modes import COLD, LIVE
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.downtime_estimate import DEFAULT_COPY_SPEED, DEFAULT_DISK_SPEED, ENGINE_START_SECONDS
from midstream.migrate.planning.measured_rates import MIN_COPY_BYTES, Rates
from midstream_core.json_types import JsonObject

READY_INSTALL_SECONDS = 8.0  # to find that the engine's packages are installed and can be imported
REHEARSED_STEPS = 3  # `midstream_engine.trainer.attempt.standby`
CERTIFY_SECONDS = 1.0  # without waiting for further steps
MIN_COMPILE_SECONDS = 1.0  # by which a first step is longer that includes the compilation


@dataclass(frozen=True)
class Work:
    """Work of a migration that determines its duration."""

    mode: str
    checkpoint_bytes: int  # 0: unknown
    data_bytes: tuple[int, ...] | None  # that each host of the target lacks; None: unknown
    copies_checkpoint: bool  # an existing checkpoint is copied before the downtime
    shared_store: bool  # both ends read one bucket: no checkpoint is copied
    environment_ready: bool | None  # on the target; None: unknown
    steps_compared: int  # by the certificate, after the first
    healthy_steps: int
    further_hosts: int = 0  # of the target, which get checkpoint and data from its first one
    replayed_steps: int = 0  # of a live migration
    step: float = 0.0  # seconds a step on the source; 0: unknown
    compile: float | None = None  # seconds on the source


def copied_bytes(work: Work, rates: Rates) -> float:
    """Return the checkpoint bytes to copy, to all of the target's hosts; 0 if unknown."""
    return 0.0 if work.shared_store else work.checkpoint_bytes * _rounds(work, rates)


def sent_data(work: Work, rates: Rates) -> int:
    """Return the bytes of data that are sent to the target's hosts; 0 if unknown."""
    missing = work.data_bytes or (0,)
    return sum(missing) if rates.copy is None else max(missing)  # as `_rounds`


def _rounds(work: Work, rates: Rates) -> int:
    """Return how often the bytes of a tree are sent.

    A measured rate includes the copies to further hosts.
    """
    return 1 if rates.copy is not None else 1 + work.further_hosts


def downtime_seconds(
    work: Work, predicted: Mapping[str, float], rates: Rates
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return predicted seconds of downtime phases, and phases of unknown duration."""
    unknown = list[str]()
    if work.mode != LIVE and not work.checkpoint_bytes:
        unknown += [name for name in ("save", "copy", "verify", "restore") if name not in rates.entries]
        if work.mode != COLD:
            unknown = [name for name in unknown if name != "verify"]
    if work.mode == COLD and work.compile is None and "compile" not in rates.entries:
        unknown.append("compile")
    if work.mode != LIVE and not (rates.step or work.step) and "first_step" not in rates.entries:
        unknown.append("first_step")
    return {name: seconds for name, seconds in predicted.items() if name not in unknown}, tuple(unknown)


def durations(work: Work, downtime: float | None, rates: Rates) -> dict[str, float | None]:
    """Return the expected seconds of each stage; None: unknown.

    Args:
        work: What there is to do.
        downtime: Predicted seconds of the downtime; None: unknown.
        rates: Measurements of earlier migrations, which replace any formula.
    """
    standby = work.mode != COLD
    copy, step = rates.copy or DEFAULT_COPY_SPEED, rates.step or work.step
    size = copied_bytes(work, rates)
    known_size = work.shared_store or bool(work.checkpoint_bytes)
    measured, install = rates.stages, rates.installs.get(bool(work.environment_ready))
    if install is None and work.environment_ready:
        install = READY_INSTALL_SECONDS
    found: dict[str, float | None] = {
        stages.INSTALL: None if work.environment_ready is None else install,
        stages.DATA: None if work.data_bytes is None else sent_data(work, rates) / copy,
    }
    if work.copies_checkpoint or standby:
        found[stages.CHECKPOINT] = size / copy if known_size else None
    if standby:
        restore = work.checkpoint_bytes / DEFAULT_DISK_SPEED
        found[stages.START] = measured.get(stages.START, ENGINE_START_SECONDS)
        found[stages.COMPILE] = measured.get(stages.COMPILE, work.compile)
        found[stages.REHEARSE] = measured.get(
            stages.REHEARSE, restore + REHEARSED_STEPS * step if work.checkpoint_bytes and step else None
        )
    if work.mode == LIVE:
        found[stages.REPLAY] = measured.get(stages.REPLAY, _replay(work, rates.step))
    found[stages.DOWNTIME] = downtime
    certify = CERTIFY_SECONDS + work.steps_compared * step if step or not work.steps_compared else None
    if work.mode == LIVE:
        certify = CERTIFY_SECONDS + size / copy if known_size else None
    found[stages.CERTIFY] = measured.get(stages.CERTIFY, certify)
    found[stages.HEALTHY] = work.healthy_steps * step if step or not work.healthy_steps else None
    return found


def assumptions(work: Work, rates: Rates, source: str, target: str) -> tuple[str, ...]:
    """Return a line for each rate that the estimates assume.

    Nothing has measured such a rate yet.
    """
    lines = list[str]()
    count = sent_data(work, rates) + (0 if work.shared_store else work.checkpoint_bytes)
    if rates.copy is None and count >= MIN_COPY_BYTES:
        lines.append(f"copies at {DEFAULT_COPY_SPEED / 1e6:.0f} MB/s: not measured between {source} and {target} yet")
    if rates.step is None and work.step:
        lines.append(f"{work.step:.3g} s a step, as on {source}: not measured on {target} yet")
    return tuple(lines)


def _replay(work: Work, step: float | None) -> float | None:
    """Return the seconds until a replica has caught up.

    None where its pace is unknown, or too slow.
    """
    if not step or not work.step or step >= work.step:
        return None
    return work.replayed_steps / (1 / step - 1 / work.step)


def compile_seconds(curve: Sequence[JsonObject], compiled: float = 0.0) -> float | None:
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
