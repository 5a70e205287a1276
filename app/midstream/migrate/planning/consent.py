"""Warnings of a migration, and what the user has to agree to before it begins."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.counts import agree, count
from midstream.errors import UsageError
from midstream.launch.engine_flags import engine_flags
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.modes import LIVE
from midstream.migrate.journal.plan import COMPILE_CACHE, Change
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import downtime_estimate
from midstream.migrate.planning.precision_changes import before_and_after
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from midstream_core.json_types import JsonObject
from midstream_core.precision import precision_of, rounds_products
from midstream_host.files.allowlist import shown

LONG_REPLAY = 1000  # steps after which small differences may have grown


def warnings_of(run: RunView, snapshot: Snapshot, lost: int, unsaved: bool) -> tuple[str, ...]:
    """Return the warnings of every mode.

    ``lost``: steps after the chosen checkpoint; ``unsaved``: there is none.
    """
    warnings: list[str] = []
    if lost:
        warnings.append(f"{count(lost, 'step')} after the chosen checkpoint {agree(lost)} lost")
    if unsaved and run.running and not (run.status and run.status.state_bytes):
        warnings.append("the run has not saved yet: the size of its state is unknown until its first checkpoint")
    if not run.running:
        warnings.append(
            f"the source does not run ({run.state}): the migration starts from its newest complete checkpoint"
        )
    stale = [host.name for host in snapshot.hosts if host.link != "live"]
    if stale:
        warnings.append(f"not answering: {', '.join(stale)}; a later copy of the run there would not be found")
    return tuple(warnings)


def live_warning(request: Request, run: RunView, newest: str) -> tuple[str, ...]:
    """Warn of the conditions of a live migration.

    Raises:
        UsageError: The run is not training, or an earlier checkpoint is requested.
    """
    if request.mode != LIVE:
        return ()
    if not run.running or request.checkpoint != "now":
        why = f"it is {run.state}" if not run.running else f"--checkpoint {request.checkpoint} is behind it"
        raise UsageError(f"run {run.run_id} cannot be migrated live: {why}", "--mode warm can migrate it")
    gap = steps_to_replay(run, newest)
    pace, _ = downtime_estimate.step_seconds(run.curve)
    replay = count(gap, "step") if newest else "few steps"
    return (
        f"the target replays {replay} and must need less than {pace:.3f} s a step; its rehearsal measures that; "
        "if it is slower, the migration continues as a warm migration",
    )


def other_cache(config: JsonObject, target: str, given: Mapping[str, str]) -> tuple[str, ...]:
    """Warn that the target does not use the config's compile cache.

    Programs read from it would be run.
    """
    flag = COMPILE_CACHE.removeprefix("--")
    directory = section(config, "trainer").get("jax_compilation_cache_dir")
    if not directory or flag in given:
        return ()
    return (
        f"{target} reads no compiled programs from {shown(str(directory))}: {COMPILE_CACHE} after -- names a cache",
    )


def live_consent(request: Request, run: RunView, newest: str, trainer: JsonObject) -> tuple[str, ...]:
    """Return the consent that a live migration needs.

    The recomputed state is close to the source's, not equal.
    """
    if request.mode != LIVE:
        return ()
    lines: list[str] = []
    both = before_and_after(trainer, engine_flags(request.overrides))
    if reduced := [policy for policy, _ in both if precision_of(policy).reduced]:
        lines.append(f"the run computes in {reduced[0]}: losses are compared within 2e-2, and the states diverge")
    elif any(rounds_products(*settings) for settings in both):
        lines.append(
            "products are in the accelerators' default precision (trainer.matmul_precision): losses are compared "
            "within 2e-2, and the states diverge"
        )
    gap = steps_to_replay(run, newest)
    if gap > LONG_REPLAY:
        lines.append(f"{count(gap, 'step')} are replayed: small differences may grow over so many")
    return tuple(lines)


def schedule_consent(changes: tuple[Change, ...], step: int) -> tuple[str, ...]:
    """Return the consent that a changed batch size or number of steps needs."""
    if not changes:
        return ()
    listed = "; ".join(f"{change.name} {change.before} -> {change.after}" for change in changes if change.changed)
    return (f"from step {step} on the run differs from the one that was started: {listed}",)


def steps_to_replay(run: RunView, newest: str) -> int:
    """Return the steps since the newest checkpoint."""
    point = records.parse_checkpoint_name(newest)
    return max(0, run.status.step - point[0]) if point and run.status else 0
