"""Warnings of a migration, and what the user has to agree to before it begins."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.counts import agree, count
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import COMPILE_CACHE, Change
from midstream.watch.snapshot import RunView, Snapshot
from midstream_core import records
from midstream_core.json_types import RunConfig
from midstream_host.allowlist import shown


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


def other_cache(config: RunConfig, target: str, given: Mapping[str, str]) -> tuple[str, ...]:
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
