"""The seal: positive evidence that the source is closed under the new epoch, and what it was closed with."""

from __future__ import annotations

import time
from typing import Any

from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.migrate import host_files
from midstream.migrate.execution.migration import Migration, replayed
from midstream.migrate.phases.streamed_copy import Answer, Streamed, stream_until_answered
from midstream.watch.snapshot import RunView
from midstream_engine import records

SEAL_TIMEOUT = 900.0  # seconds: a step and a save of a large run
IN_HAND = 2 * SEAL_TIMEOUT  # seconds after which another migration may take the run, if this one has not sealed it


def seal(move: Migration, streamed: Streamed, at: int | None = None) -> dict[str, Any]:
    """Positive evidence that the source is closed under the new epoch, and what it was closed with. It trains up to
    step ``at`` first, where that is given and still to come."""
    fence = _take(move)
    described = move.source_group.describe()
    if fence.epoch < move.plan.epoch:
        if move.journal.known("holder_before") is None:
            move.journal.fact(holder_before=fence.owner, sealing=time.time())
        if described["running"]:
            described, ours = _stop(move, described, streamed, at)
            if ours:
                return _everywhere(move, _sealed_facts(move, described))
        if records.Fence.from_json(described["fence"]).epoch < move.plan.epoch:
            _seal_closed(move, described)
    _take(move)  # what was sealed meanwhile may have been another migration's
    return _everywhere(move, _sealed_facts(move, move.source_group.describe()))


def sealed_already(move: Migration) -> dict[str, Any] | None:
    """What the source is sealed with, as its disk has it, where this migration has sealed it; None where it has not."""
    described = move.source_group.describe()
    fence = records.Fence.from_json(described["fence"])
    sealed = fence.epoch == move.plan.epoch and fence.owner == move.plan.target
    return _sealed_facts(move, described) if sealed else None


def _everywhere(move: Migration, facts: dict[str, Any]) -> dict[str, Any]:
    """The seal on every home of the source: a process that was killed after it had saved has not written its own."""
    if len(move.source_group.run_hosts) > 1:
        move.source_group.put_fence(facts["fence"], move.plan.migration)
    return facts


def _take(move: Migration) -> records.Fence:
    """Have the run to ourselves, or end here: RemoteError says who has it."""
    return move.source_group.acquire(move.plan.migration, move.plan.epoch, move.plan.target, IN_HAND)


def _stop(
    move: Migration, described: dict[str, Any], streamed: Streamed, at: int | None
) -> tuple[dict[str, Any], bool]:
    """Order the running engine to save and to stop; the run as it is then, and whether it has sealed itself for this
    migration: where the move starts from this very save, the engine writes the fence itself, and its status is the
    acknowledgement."""
    plan, source, attempt = move.plan, move.source, described["attempt"]
    sealing = plan.checkpoint == "now"
    order = records.Command(
        records.STOP,
        epoch=plan.epoch if sealing else plan.source_epoch,
        owner=plan.target if sealing else "",
        migration=plan.migration,
        step=at,
    )
    move.journal.fact(source_was_alive=True, sealing_attempt=attempt, ordered=time.time())
    serial = source.call(
        "runs.ownership.send_command", root=source.root, run_id=plan.run_id, attempt=attempt, order=order.to_json()
    )
    move.journal.fact(seal_serial=serial)
    when = "" if at is None else f"at step {at}: "
    what = f"save, seal epoch {plan.epoch} for {plan.target}, stop" if sealing else "save, stop"
    move.command(source, f"order: {when}{what} (attempt {attempt})")

    answer = _answer(move, attempt, serial, described, streamed)
    move.journal.fact(stop_seen=time.time())
    message = answer.status.message if answer.status else ""
    if answer.status is not None and answer.status.rejected >= serial:
        raise MidstreamError(
            f"{source.name} cannot save what is to be moved: {message}",
            f"mend that on {source.name} and move again; the run trains on",
        )
    told = answer.described
    described = move.source_group.describe() if told is None else move.source_group.with_stored_checkpoints(told)
    if records.Fence.from_json(described["fence"]).epoch >= plan.epoch:
        # What its process still does, it does under an epoch that is over.
        return described, answer.mover is not None and answer.mover["migration"] == plan.migration
    move.source_group.wait_exited(attempt)
    described = move.source_group.describe()
    if answer.status is None or answer.status.acknowledged < serial:
        # It died or finished before it read the order. Its process is gone, so we may seal.
        move.note(
            f"the source ended by itself ({answer.state}{': ' + message if message else ''}); sealing what it left"
        )
    return described, False


def _answer(move: Migration, attempt: int, serial: int, described: dict[str, Any], streamed: Streamed) -> Answer:
    """How the source took the order; what it saves meanwhile is sent ahead where the target stands by."""
    plan, source = move.plan, move.source
    since = int((described["status"] or {}).get("step", 0))
    earlier = None
    # Shares of several hosts are collected afterwards; a bucket's objects come with the rest of its checkpoint.
    one = len(move.source_group.run_hosts) == 1 and not (plan.source_store or plan.target_store)
    rehearsal = move.journal.known("rehearsal")
    if one and rehearsal and plan.stands_by and plan.checkpoint == "now" and not replayed(move):
        earlier = host_files.read_manifest(move.target, plan.run_id, rehearsal["name"])
    try:
        return stream_until_answered(move, attempt, serial, since, earlier, streamed)
    except HostError as error:
        if isinstance(error, RemoteError):
            raise
        move.note(f"{error.message}; waiting for its answer: losing contact is not losing the run")

    def answered(run: RunView) -> bool:
        if run.attempt != attempt:
            return run.attempt > attempt
        return run.status is not None and (
            run.state in records.ENDED or run.state == "lost" or run.status.rejected >= serial
        )

    run = move.wait_for("the source's acknowledgement of the seal", source.name, answered, SEAL_TIMEOUT)
    return Answer(run.status, run.running)


def _seal_closed(move: Migration, described: dict[str, Any]) -> None:
    """Seal a source that does not run at a checkpoint that exists."""
    plan, source = move.plan, move.source
    usable = [point for point in described["checkpoints"] if point["complete"] and point["accepted"]]
    if plan.checkpoint != "now":
        usable = [point for point in usable if point["name"] == plan.checkpoint]
    if not usable:
        raise MidstreamError(
            f"{source.name} has no complete checkpoint to move", "midstream --checkpoints RUN shows what is there"
        )
    step = max(point["step"] for point in usable)
    damaged = [point for point in described["checkpoints"] if point["damaged"] and point["step"] > step]
    if plan.checkpoint == "now" and damaged:
        point = max(damaged, key=lambda point: point["step"])
        raise MidstreamError(
            f"{source.name}: checkpoint {point['name']} is damaged: {point['damaged']}",
            f"roll back, and move again with --checkpoint {step}, which goes on from the newest complete one",
        )
    move.source_group.seal(plan.migration, plan.epoch, plan.target, step)
    move.command(source, f"fence: epoch {plan.epoch}, holder {plan.target}, sealed at step {step}")


def _sealed_facts(move: Migration, described: dict[str, Any]) -> dict[str, Any]:
    """What was sealed, as the source's disk has it: the fence and the newest checkpoint that it accepts."""
    plan, source = move.plan, move.source
    fence = records.Fence.from_json(described["fence"])
    if fence.epoch != plan.epoch or fence.owner != plan.target or fence.sealed_step is None:
        raise MidstreamError(f"{source.name} stopped without sealing epoch {plan.epoch}", "plan again")
    points = [p for p in described["checkpoints"] if p["complete"] and p["step"] == fence.sealed_step]
    if plan.checkpoint != "now":
        points = [point for point in points if point["name"] == plan.checkpoint]
    if not points:
        raise MidstreamError(
            f"the fence on {source.name} seals step {fence.sealed_step}, of which no complete checkpoint is there",
            "midstream --checkpoints RUN shows what is there",
        )
    point = max(points, key=lambda point: point["attempt"])
    return {
        "checkpoint": point["name"],
        "step": point["step"],
        "root_digest": point["root_digest"],
        "bytes": point["size"],
        "fence": fence.to_json(),
        # A bucket may hold what a later attempt saved than this host knows of.
        "attempt": max(described["attempt"], point["attempt"]),
    }
