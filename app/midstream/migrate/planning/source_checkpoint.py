"""Checkpoint to continue from, and the store that has it. Nothing is written."""

from __future__ import annotations

from dataclasses import replace

from midstream.errors import Exit, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.migrate.checkpoint_store import BucketStore, CheckpointStore, checkpoint_store_of
from midstream.watch.snapshot import RunView
from midstream_core.listed_checkpoint import ListedCheckpoint, newest_checkpoint
from midstream_host.runs import run_state
from midstream_host.verify import tree


def source_checkpoint_store(fleet: Fleet, source: Host, run: RunView, store: str, *, lost: bool) -> CheckpointStore:
    """Return the store that has the run's checkpoints.

    A lost machine may have stored them in a bucket that still exists: that of the target that owned the run, or
    ``store``, the new target's.

    Args:
        fleet: The fleet.
        source: Host of the run.
        run: The run.
        store: URL of the new target's store; empty or ``null``: none.
        lost: Whether the source is lost.
    """
    own = source.call(tree.store_of)(root=source.root, run_id=run.run_id)
    if own or not lost or run.fence is None:
        return checkpoint_store_of(fleet, source, run.run_id, own or "")
    described = source.call(run_state.describe)(root=source.root, run_id=run.run_id)
    for url in dict.fromkeys((fleet.store_of_target(run.fence.owner), store)):
        checkpoint_store = checkpoint_store_of(fleet, source, run.run_id, url if url != "null" else "")
        if checkpoint_store.store and any(
            checkpoint.accepted for checkpoint in checkpoint_store.checkpoints(described)
        ):
            return checkpoint_store
    return checkpoint_store_of(fleet, source, run.run_id, "")


def with_stored_checkpoints(run: RunView, source: Host, store: CheckpointStore) -> RunView:
    """Return the run with the checkpoints of its bucket, where it has one.

    Raises:
        MidstreamError: The bucket shows more than the proven owner of the run: it may have moved on.
    """
    if not isinstance(store, BucketStore):
        return run
    described = source.call(run_state.describe)(root=source.root, run_id=run.run_id)
    checkpoints, claim = store.examined(described)
    if claim:
        raise MidstreamError(
            claim,
            "the machine that started that migration continues it, or its operator is missing in operators:; "
            f"midstream --repair {run.run_id} --on {run.host} gives the run to {run.host} all the same",
            Exit.REFUSED,
        )
    return replace(run, checkpoints=tuple(checkpoints))


def choose_checkpoint(run: RunView, requested: str) -> ListedCheckpoint | None:
    """Return the complete, accepted checkpoint to continue from.

    ``requested``: ``now``, ``latest`` or a step. None stands for a final save at the seal.

    Raises:
        UsageError: The request names no checkpoint that exists.
        MidstreamError: There is none, or a newer one is damaged.
    """
    if requested == "now":
        if run.running:
            return None
        request_kind = "latest"  # no process can save: the newest complete one is used
    else:
        request_kind = requested
    if request_kind == "latest":
        latest = newest_checkpoint(run.usable)
        if latest is None:
            raise MidstreamError(
                f"run {run.run_id} on {run.host} has no complete checkpoint",
                "start it there again, or wait for its first save",
            )
        _refuse_newer_damage(run, latest)
        return latest
    if not request_kind.isdecimal():
        raise UsageError(
            f"--checkpoint {requested!r}: not now, latest or a step number",
            "midstream --checkpoints RUN lists them",
        )
    chosen = [checkpoint for checkpoint in run.usable if checkpoint.step == int(request_kind)]
    if not chosen:
        steps = ", ".join(map(str, sorted(checkpoint.step for checkpoint in run.usable))) or "none"
        raise UsageError(
            f"run {run.run_id} on {run.host} has no complete checkpoint at step {request_kind}",
            f"complete ones: {steps}",
        )
    return max(chosen, key=lambda checkpoint: checkpoint.attempt)


def _refuse_newer_damage(run: RunView, chosen: ListedCheckpoint) -> None:
    """Refuse ``chosen`` where a newer checkpoint is damaged.

    The user decides whether to use an older state.
    """
    later = (checkpoint for checkpoint in run.checkpoints if checkpoint.damaged and checkpoint.step > chosen.step)
    damaged = newest_checkpoint(later)
    if damaged is not None:
        raise MidstreamError(
            f"{run.host}: checkpoint {damaged.name} of {run.run_id} is damaged: {damaged.damaged}",
            f"--checkpoint {chosen.step} continues from the newest complete one",
            Exit.REFUSED,
        )
