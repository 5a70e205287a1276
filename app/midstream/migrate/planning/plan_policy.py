"""Policy of a migration: its warnings, and what the user has to agree to."""

from __future__ import annotations

import time
from collections.abc import Mapping

from midstream.counts import agree, count
from midstream.format import duration
from midstream.migrate.journal.json_values import section
from midstream.migrate.journal.plan import COMPILE_CACHE, Policy
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.work import Source
from midstream.migrate.planning.plan_inputs import Ends, SourceContents
from midstream.migrate.planning.precision_changes import before_and_after
from midstream.migrate.planning.progress import steps_since
from midstream.watch.snapshot import Snapshot
from midstream_core.json_types import RunConfig
from midstream_host.allowlist import shown


def plan_policy(
    snapshot: Snapshot, request: Request, ends: Ends, contents: SourceContents, consent: tuple[str, ...]
) -> Policy:
    """Collect warnings and consent.

    Args:
        snapshot: State of the fleet.
        request: The migration that is requested.
        ends: The run and both ends of the migration.
        contents: What the source has of the run.
        consent: Consent that a changed schedule needs.
    """
    run, newest = ends.run, contents.newest
    if contents.imported is not None:
        return Policy(
            certify_steps=request.certify_steps,
            healthy_steps=request.healthy_steps,
            consent=consent,
            warnings=contents.imported.warnings,
        )
    mode = ends.mode
    source = Source(
        run_id=run.run_id,
        running=run.running,
        state=run.state,
        checkpoint=request.checkpoint,
        saved=bool(newest),
        replayed_steps=steps_since(run, newest),
        step=ends.pace.step,
        precisions=before_and_after(contents.trainer, ends.flags),
    )
    mode.check_source(source)
    return Policy(
        source_lost=request.source_lost,
        certify_steps=request.certify_steps,
        healthy_steps=request.healthy_steps,
        consent=(
            *mode.consent(source),
            *contents.owner_consent,
            *consent,
            *contents.consent,
        ),
        warnings=(
            *warnings_of(snapshot, ends, contents),
            *mode.warnings(source),
            *_queue_warnings(ends),
            *_other_cache(contents.config, ends.target.name, ends.flags),
        ),
    )


def _queue_warnings(ends: Ends) -> tuple[str, ...]:
    """Return warnings on an allocation's devices, and a cold migration's queue wait."""
    if ends.allocation is None:
        return ()
    described = f"{ends.target.name} is a SLURM allocation of {ends.allocation.requested.describe()}"
    lines = [f"{described}, as its flags of sbatch request; it is checked when the allocation starts"]
    wait = duration(max(0.0, ends.allocation.starts - time.time()))
    shared = ends.source is ends.destinations[0]
    return (*lines, *ends.mode.queue_warnings(wait, shared=shared))


def warnings_of(snapshot: Snapshot, ends: Ends, contents: SourceContents) -> tuple[str, ...]:
    """Return the warnings of every mode."""
    warnings: list[str] = []
    run, lost = ends.run, contents.steps_lost
    if lost:
        warnings.append(f"{count(lost, 'step')} after the chosen checkpoint {agree(lost)} lost")
    if not contents.newest and run.running and not (run.status and run.status.state_bytes):
        warnings.append("the run has not saved yet: the size of its state is unknown until its first checkpoint")
    if not run.running:
        warnings.append(
            f"the source does not run ({run.state}): the migration starts from its newest complete checkpoint"
        )
    stale = [host.name for host in snapshot.hosts if host.link != "live"]
    if stale:
        warnings.append(f"not answering: {', '.join(stale)}; a later copy of the run there would not be found")
    return tuple(warnings)


def _other_cache(config: RunConfig, target: str, given: Mapping[str, str]) -> tuple[str, ...]:
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
