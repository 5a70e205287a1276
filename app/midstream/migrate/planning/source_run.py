"""Where a move begins: which copy of the run, which of its checkpoints, and where those lie. No side effects."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from midstream.errors import Exit, HostError, MidstreamError, UsageError
from midstream.migrate.checkpoint_store import CheckpointStore, checkpoint_store_of
from midstream.migrate.model import LIVE, Request
from midstream.watch.damaged_runs import refuse_damaged
from midstream.watch.snapshot import CheckpointView

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.watch.snapshot import RunView, Snapshot


def find_run(fleet: Fleet, snapshot: Snapshot, request: Request) -> RunView:
    """The copy to move: the one with the highest fence epoch, whichever hosts answer."""
    silent = [host for host in snapshot.hosts if host.link != "live"]
    copies = [copy for copy in snapshot.copies(request.run_id) if not request.source or copy.host == request.source]
    if not copies:
        known = sorted({run.run_id for run in snapshot.runs})
        near = difflib.get_close_matches(request.run_id, known, 3)
        hint = (
            f"did you mean {', '.join(near)}?"
            if near
            else f"known: {', '.join(known)}"
            if known
            else "no host holds a run"
        )
        if silent:
            hint += "; not answering: " + ", ".join(f"{host.name} ({host.error or host.link})" for host in silent)
        raise UsageError(f"no run {request.run_id!r}" + (f" on {request.source}" if request.source else ""), hint)
    refuse_damaged(snapshot.copies(request.run_id))
    run = _held(fleet, copies)
    if not request.source_lost:
        _check_holder(fleet, snapshot, run)
    return run


def _held(fleet: Fleet, copies: Sequence[RunView]) -> RunView:
    """Of the copies with the highest epoch the holder's own, also where it has just begun and says little as yet."""
    first = copies[0]
    holder = first.fence.owner if first.fence is not None else ""
    hosts = fleet.hosts_of(holder) if holder in fleet.target_names else ()
    return next((copy for copy in copies if copy.host in hosts and copy.epoch == first.epoch), first)


def _check_holder(fleet: Fleet, snapshot: Snapshot, run: RunView) -> None:
    """Refuse to move a copy that the fence says belongs elsewhere: that would make a second lineage."""
    if run.fence is None or run.fence.sealed_step is None:
        return  # it never moved: whoever started it, under whatever name, is its holder
    holder = run.fence.owner
    held_by = fleet.hosts_of(holder) if holder in fleet.target_names else ()
    if not holder or run.host in held_by:
        return
    kept = fleet.store_of_target(holder)
    lost = "where that machine is certainly gone, --source-lost goes on from " + (
        f"what it left in {kept}" if kept else "this copy"
    )
    belongs = f"run {run.run_id} on {run.host} was handed to {holder} (epoch {run.epoch})"
    if holder in fleet.absent:
        raise UsageError(f"{belongs}: {fleet.absent[holder].message}", lost)
    if not held_by:
        raise UsageError(f"{belongs}, which the fleet file does not name", f"add it there; {lost}")
    silent = [host for host in snapshot.hosts if host.name in held_by and host.link != "live"]
    if silent:
        raise HostError(f"{belongs}, which does not answer: {silent[0].error or silent[0].link}", f"mend that; {lost}")
    raise UsageError(f"{belongs}, which has no copy", f"midstream --continue finishes a move that was begun; {lost}")


def check_stores(request: Request, run: RunView, here: str, there: str) -> None:
    """Refuse what cannot be done with checkpoints in these places."""
    if here and there and here != there:
        raise UsageError(
            f"run {run.run_id} keeps its checkpoints in {here}, and {request.target} would in {there}",
            f"store: {here} for {request.target} in the fleet file; nothing is copied then",
        )
    if request.mode == LIVE and (here or there):
        raise UsageError(
            f"a live migration of {run.run_id} would compare states that lie in {here or there}",
            "--mode warm moves what lies in a bucket",
        )


def shelf_of_source(fleet: Fleet, source: Host, run: RunView, request: Request, store: str) -> CheckpointStore:
    """Where the run's checkpoints are. A machine that is lost may have kept them in a bucket, which is still there:
    that of the target that held the run, or ``store``, the new target's."""
    own = source.call("verify.tree.store_of", root=source.root, run_id=run.run_id)
    if own or not request.source_lost or run.fence is None:
        return checkpoint_store_of(fleet, source, run.run_id, own or "")
    described = source.call("runs.run_state.describe", root=source.root, run_id=run.run_id)
    for url in dict.fromkeys((fleet.store_of_target(run.fence.owner), store)):
        shelf = checkpoint_store_of(fleet, source, run.run_id, url if url != "null" else "")
        if shelf.store and any(point["accepted"] for point in shelf.points(described)):
            return shelf
    return checkpoint_store_of(fleet, source, run.run_id, "")


def shelved(run: RunView, source: Host, shelf: CheckpointStore) -> RunView:
    """The run with what lies in its bucket, where it has one."""
    if not shelf.store:
        return run
    described = source.call("runs.run_state.describe", root=source.root, run_id=run.run_id)
    return replace(run, checkpoints=tuple(CheckpointView(**point) for point in shelf.points(described)))


def choose_checkpoint(run: RunView, request: Request) -> CheckpointView | None:
    """None for "now" (a final save at the seal), else the complete, accepted checkpoint to go on from."""
    usable = [point for point in run.checkpoints if point.complete and point.accepted]
    if request.checkpoint == "now":
        if run.running:
            return None
        request_kind = "latest"  # nobody is there to save: the newest complete one is all there is
    else:
        request_kind = request.checkpoint
    if request_kind == "latest":
        if not usable:
            raise MidstreamError(
                f"run {run.run_id} on {run.host} has no complete checkpoint",
                "start it again there, or wait for its first save",
            )
        chosen_point = max(usable, key=lambda point: (point.step, point.attempt))
        _refuse_newer_damage(run, chosen_point)
        return chosen_point
    if not request_kind.isdigit():
        raise UsageError(
            f"--checkpoint {request.checkpoint!r}: not now, latest or a step number",
            "midstream --checkpoints RUN lists them",
        )
    chosen = [point for point in usable if point.step == int(request_kind)]
    if not chosen:
        steps = ", ".join(str(point.step) for point in sorted(usable, key=lambda point: point.step)) or "none"
        raise UsageError(
            f"run {run.run_id} on {run.host} has no complete checkpoint at step {request_kind}",
            f"complete ones: {steps}",
        )
    return max(chosen, key=lambda point: point.attempt)


def _refuse_newer_damage(run: RunView, chosen: CheckpointView) -> None:
    """An older state is never taken behind a person's back: a damaged checkpoint is not an absent one."""
    damaged = [point for point in run.checkpoints if point.damaged and point.step > chosen.step]
    if damaged:
        newest = max(damaged, key=lambda point: (point.step, point.attempt))
        raise MidstreamError(
            f"{run.host}: checkpoint {newest.name} of {run.run_id} is damaged: {newest.damaged}",
            f"--checkpoint {chosen.step} goes on from the newest complete one",
            Exit.REFUSED,
        )
