"""The attempt that stands by on the target: compiled and rehearsed, it waits for the state while the source trains on.

It has no part in the run before it is told to take over, so it may be ended or started anew at any time until then.
Until it has a state its status says epoch 0: that is how it is told from one that trains.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from midstream.errors import HostError, LostContact, MidstreamError
from midstream.hosts.deadline import REACHING_STEP, Deadline
from midstream.launch.errors import LaunchError
from midstream.migrate.execution.migration import Migration, NeedsOperator, pin, pin_expires, replayed
from midstream.migrate.phases.data_copy import copy_all
from midstream.migrate.phases.streamed_copy import bring_checkpoint
from midstream.migrate.planning import estimate
from midstream.migrate.planning.source_config import agreed_config
from midstream.watch.snapshot import RunView
from midstream_engine import records

READY_TIMEOUT = 3600.0  # seconds: import, compile and rehearse a large model
SAVE_TIMEOUT = 900.0
ANSWER_TIMEOUT = 300.0  # seconds in which a waiting attempt reads an order: it may be stopped, or swap
ANSWER_CALL = 20.0  # of these, seconds that the call waits which gives the order
ANSWER_PATIENCE = 2.0  # and each call that asks for the answer afterwards
ENDING = 20.0  # seconds that it may take to stop by itself
POLL = 0.02
UNREACHABLE = 1.0  # seconds between two tries to reach a host


def ensure(move: Migration) -> int:
    """The number of the attempt that stands by on the target, started where there is none. Returns once it is ready.

    MidstreamError, with its last words, where it fails: what it rehearsed does not work there."""
    number = living(move)
    if number is None:
        if move.journal.known("standby_attempt") is not None:
            move.note("the attempt that stood by on the target is gone; starting another one")
        point = bring_rehearsal(move)
        copy_all(move, move.target_group.checkpoint_store.data_digests(point["name"]))
        number = _start(move, point)
        move.journal.fact(standby_attempt=number)
    return _wait_ready(move, number)


def living(move: Migration) -> int | None:
    """The attempt of this migration that stands by on the target now."""
    found = newest(move)
    return found["attempt"] if found and found["running"] and stands_by(found["status"]) else None


def newest(move: Migration) -> dict[str, Any] | None:
    """The newest attempt of this migration on the target: ``{attempt, epoch, status, alive}``."""
    return move.target_group.attempt_of_migration(move.plan.migration)


def stands_by(status: dict[str, Any] | None) -> bool:
    """Whether an attempt with this status has no part in the run yet."""
    return status is None or (status["epoch"] == 0 and status["state"] not in records.ENDED)


# ------------------------------------------------------------------------------------------ before it waits


def bring_rehearsal(move: Migration) -> dict[str, Any]:
    """The checkpoint to rehearse on, on the target: the one that is to be moved where that exists already, else the
    newest one. Where the run has not saved yet, it is asked to."""
    known: dict[str, Any] | None = move.journal.known("rehearsal")
    point = known or _choose(move)
    name = point["name"]
    pin(move, name)
    began = time.monotonic()
    sent = bring_checkpoint(move, name, "an earlier checkpoint")
    if move.journal.known("rehearsal_bytes") is None and sent:
        move.journal.fact(rehearsal_bytes=sent, rehearsal_seconds=time.monotonic() - began)
    if known is None:
        move.journal.fact(rehearsal=point)
    return point


def _choose(move: Migration) -> dict[str, Any]:
    """The checkpoint to rehearse on. Retention keeps away from it from now on: a run that trains on replaces one by the
    next."""
    plan, source = move.plan, move.source

    def pinned() -> dict[str, Any] | None:
        name = "" if plan.checkpoint == "now" else plan.checkpoint
        return move.source_group.checkpoint_store.pin_newest(plan.migration, pin_expires(move), name)

    point = pinned()
    if point is None:
        _ask_to_save(move)
        point = pinned()
    if point is None:
        raise MidstreamError(
            f"{source.name} has no complete checkpoint to rehearse on",
            "midstream --checkpoints RUN shows what is there",
        )
    return {name: point[name] for name in ("name", "step", "root_digest")}


def _ask_to_save(move: Migration) -> None:
    """Order the source to save and to train on: the run has no checkpoint yet."""
    plan, source = move.plan, move.source
    attempt = source.call("runs.run_state.running_attempt", root=source.root, run_id=plan.run_id)
    if not attempt:
        return
    order = records.Command(records.SAVE, epoch=plan.source_epoch, migration=plan.migration)
    serial = source.call(
        "runs.ownership.send_command", root=source.root, run_id=plan.run_id, attempt=attempt, order=order.to_json()
    )
    move.command(source, f"order: save and go on, for the rehearsal (attempt {attempt})")
    before: list[str] = []

    def answered(run: RunView) -> bool:
        status = run.status
        if run.attempt != attempt or status is None or run.state in records.ENDED or run.state == "lost":
            return True
        if not before:
            before.append(status.message)
        failed = bool(status.message) and status.message != before[0] and status.state == records.TRAINING
        return status.acknowledged >= serial or failed

    run = move.wait_for("the source's save", source.name, answered, SAVE_TIMEOUT)
    if run.status is not None and run.status.acknowledged < serial and run.status.message:
        raise MidstreamError(
            f"{source.name} cannot save what is to be moved: {run.status.message}",
            f"mend that on {source.name} and move again; the run trains on",
        )


def _start(move: Migration, point: dict[str, Any]) -> int:
    plan = move.plan
    move.target_group.put_config(agreed_config(move.source, plan))
    described = move.source_group.describe()
    order = records.Command(
        records.REPLAY if replayed(move) else records.STANDBY,
        epoch=plan.epoch,
        checkpoint=point["name"],
        root_digest=point["root_digest"],
        step=point["step"],
        migration=plan.migration,
    )
    saved = [point["attempt"] for point in described["checkpoints"]]
    at_least = max([described["attempt"], *described["attempts"], *saved], default=0) + 1
    return move.start(move.target_group, order, holder=plan.target, at_least=at_least)


def _wait_ready(move: Migration, number: int) -> int:
    ready = (records.WAITING, records.REPLAYING)

    def decided(run: RunView) -> bool:
        return run.attempt == number and (run.state in ready or run.state in records.ENDED or run.state == "lost")

    side = move.target_group
    run = move.wait_for(
        "the target's rehearsal", move.plan.target_host, decided, READY_TIMEOUT, lambda: side.check_group(number)
    )
    if run.state not in ready or run.status is None:
        message = run.status.message if run.status else ""
        last = next((line for line in reversed(run.log) if line.strip()), "")
        why = side.verdict(number) or message or last or "no word in its log"
        raise MidstreamError(
            f"the rehearsal on {move.plan.target} failed ({run.state}): {why}",
            f"its log: {move.plan.target_host}:{move.target_paths.attempt(number).log()}",
        )
    if move.journal.known("rehearsed_seconds") is None:
        move.journal.fact(rehearsed_seconds=run.status.rehearsed_seconds)
        move.note(f"rehearsed on {move.plan.target_host}: {run.status.rehearsed_seconds:.3f} s a step; it waits")
        estimate.again(move)
    return number


# ------------------------------------------------------------------------------------------ when its time has come


def hand_over(move: Migration, order: records.Command, sealed: Mapping[str, Any]) -> int | None:
    """Give the run to the attempt that stands by: the sealed fence, then ``order``, in one call. Its number; None,
    after saying why, where nobody stands by (any more) and the run has to be started in the ordinary way."""
    number = move.journal.known("standby_attempt")
    if number is None:
        return None
    if number <= sealed["attempt"]:
        move.note(f"attempt {number} was started on the source meanwhile: the one that waits makes way for a new one")
        dismiss(move)
        return None
    if move.journal.known("relaunched") is None:
        move.journal.fact(relaunched=time.time())
    target = move.target
    if len(move.target_group.run_hosts) > 1:  # before process 0 is told to go on, the others' fences say that they may
        move.target_group.put_fence(sealed["fence"], move.plan.migration)
    while True:
        told = target.call(
            "runs.standby_state.take_over",
            root=target.root,
            run_id=move.plan.run_id,
            attempt=number,
            fence=sealed["fence"],
            order=order.to_json(),
            patience=ANSWER_CALL,
            timeout=3 * ANSWER_CALL,
        )
        if told["outcome"] != "unready":
            break
        try:
            _wait_ready(move, number)
        except (LostContact, NeedsOperator):  # it may still be waiting there
            raise
        except MidstreamError as error:
            move.note(f"{error}; the run is started there in the ordinary way")
            dismiss(move)
            return None
    if told["outcome"] == "told":
        return number
    if told["outcome"] == "gone":
        move.note(f"attempt {number} does not stand by any more: the run is started there in the ordinary way")
        return None
    move.command(target, f"order: {order.action} {order.checkpoint} (attempt {number})")
    status = _answer(move, number, told["sequence"], told)
    taken = status is not None and status.acknowledged >= told["sequence"]
    if taken and status is not None and status.state not in (records.STOPPED, records.FAILED):
        return number
    why = status.message if status is not None else "no word of it"
    move.note(f"attempt {number} did not take the run over ({why}): it is started there in the ordinary way")
    dismiss(move)
    return None


def restoring(move: Migration, point: Mapping[str, Any]) -> records.Command:
    """The order to go on from ``point`` (checkpoint, root_digest, step)."""
    return _ordered(move, records.RESTORE, point)


def promoting(move: Migration, point: Mapping[str, Any]) -> records.Command:
    """The order to a shadow to be the run from ``point`` on."""
    return _ordered(move, records.PROMOTE, point)


def _ordered(move: Migration, action: str, point: Mapping[str, Any]) -> records.Command:
    return records.Command(
        action,
        epoch=move.plan.epoch,
        checkpoint=point["checkpoint"],
        root_digest=point["root_digest"],
        step=point["step"],
        migration=move.plan.migration,
    )


def give(move: Migration, number: int, order: records.Command) -> tuple[int, records.Status | None]:
    """Give the standing attempt an order: its serial, and the status once it took or refused it, or ended.
    MidstreamError where it does neither in time."""
    target, run_id = move.target, move.plan.run_id
    serial = target.call(
        "runs.ownership.send_command", root=target.root, run_id=run_id, attempt=number, order=order.to_json()
    )
    found = {"heard": False, "status": None}
    status = _answer(move, number, serial, found)
    if not found["heard"]:
        raise MidstreamError(
            f"attempt {number} on {target.name} does not answer", f"midstream --status shows what {target.name} does"
        )
    return serial, status


def _answer(move: Migration, number: int, serial: int, found: dict[str, Any]) -> records.Status | None:
    """The status of the attempt once it has taken or refused order ``serial``, or has ended, or after
    `ANSWER_TIMEOUT`. ``found``: what its host said last (``heard``, ``status``), which is brought up to date."""
    target, deadline = move.target, Deadline(ANSWER_TIMEOUT, REACHING_STEP)
    while not found["heard"] and not deadline.count():
        move.check_requests()
        found.update(
            target.call(
                "runs.standby_state.heard",
                root=target.root,
                run_id=move.plan.run_id,
                attempt=number,
                serial=serial,
                patience=ANSWER_PATIENCE,
            )
        )
    return None if found["status"] is None else records.Status.from_json(found["status"])


def dismiss(move: Migration) -> None:
    """End the attempt that stands by, where there is one. It has nothing to save."""
    number = living(move)
    if number is None:
        return
    move.command(move.target, f"end attempt {number} on {move.plan.target}: it only stood by")
    try:
        move.target_group.stop(number, ENDING)
    except LaunchError:
        move.target_group.kill(number)


def dismiss_if_reachable(move: Migration, patience: float = 0.0) -> bool:
    """``dismiss``, tried for ``patience`` seconds; False where the host did not answer, which is said with what ends
    the attempt there."""
    if move.journal.known("standby_attempt") is None and not move.plan.stands_by:
        return True
    deadline = time.monotonic() + patience
    while True:
        try:
            dismiss(move)
            return True
        except HostError as error:
            if time.monotonic() < deadline:
                time.sleep(UNREACHABLE)
                continue
            move.note(
                f"{error.message}; an attempt that still waits on {move.plan.target_host} never gets the run, and ends "
                "by itself; kill it there to free the accelerators sooner"
            )
            return False
