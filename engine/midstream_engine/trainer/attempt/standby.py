"""An attempt that waits: compiled and rehearsed, for a state that is still being trained elsewhere.

It has no part in the run: no fence, no lineage, no checkpoint, no metrics. What is not done while it waits is done
while the run stands still, so everything is: a step of every program, the witness, and the memory that they need.
"""

from __future__ import annotations

import logging
import math
import time

import jax
import numpy as np

from midstream_engine import records
from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.loading.list_checkpoints import read_manifest
from midstream_engine.checkpoint.saving.save_fence import FenceUnreadable, read_fence
from midstream_engine.errors import EngineError, FencedError
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.reference_losses import TOLERANCE, worst_error
from midstream_engine.trainer.attempt.resume import Origin, restore
from midstream_engine.trainer.attempt.setup import Setup
from midstream_engine.trainer.attempt.standby_lease import Lease
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop.requests import Requests
from midstream_engine.trainer.runtime.programs import Programs

log = logging.getLogger(__name__)
REHEARSED = 3  # updates; the first two may hold what happens only once
POLL = 0.02  # seconds between two looks at the order


def rehearse(origin: Origin, setup: Setup, programs: Programs, status: StatusFile) -> float:
    """Some updates on a copy of ``origin``'s state, which is dropped afterwards; returns the seconds of the last one.

    Raises EngineError where these devices compute other losses than the checkpoint's writer did, or none at all: found
    out while the run trains on elsewhere.
    """
    status.update(state=records.RESTORING, message=f"rehearses on {origin.name}")
    resumed, train = restore(origin, setup)
    batch = setup.batches.under(origin.batch_schedule).batch(resumed.step)
    measured = programs.reference_losses.measure(resumed.state.model, batch)
    recorded = [float(loss) for loss in (train.get("reference_losses") or {}).get("losses", [])]
    error = worst_error(recorded, measured.losses)
    if recorded and error > TOLERANCE:
        raise EngineError(
            f"rehearsal: losses of {origin.name} differ by {error:.1e} relative from those recorded with it "
            f"(allowed {TOLERANCE:.0e}): these devices do not compute the same run"
        )
    state, seconds, loss = resumed.state, 0.0, math.nan
    del resumed
    last = min(origin.step + REHEARSED, setup.config.trainer.num_train_steps)
    for step in range(origin.step, last):
        batch, cut = setup.batches.batch(step), setup.cut_at(step)
        began = time.monotonic()
        number = jax.device_put(np.int32(step), setup.layout.replicated())
        state, result = programs.step(state, number, cut.put(batch.tokens), cut.put(batch.loss_mask))
        loss, seconds = float(result.loss), time.monotonic() - began
    if not math.isfinite(loss) and last > origin.step:
        raise EngineError(f"rehearsal: the loss after {origin.name} is {loss}")
    log.info(
        "rehearsed %d updates on %s: %.0f ms each, loss %.4f", last - origin.step, origin.name, 1000 * seconds, loss
    )
    status.update(rehearsed_seconds=seconds, step=origin.step)
    return seconds


def hold(attempt: Attempt, requests: Requests, status: StatusFile) -> records.Command | None:
    """Wait for an order to restore, and return it; None where the attempt is to end instead: told so, or forgotten.

    An order that does not fit (another epoch, a checkpoint that is not here, a fence that does not say so) is refused,
    and waiting goes on. Raises FencedError where the run was handed past this attempt's epoch.
    """
    status.update(state=records.WAITING, message=f"waits for its state, epoch {attempt.epoch}")
    lease = Lease(attempt)
    while jax.process_index() or not lease.over():
        wanted = requests.look()
        order = wanted.order
        if wanted.stop:
            status.update(acknowledged=status.value.acknowledged if order is None else order.sequence, message="")
            log.info("told to stop while it waited")
            return None
        if order is not None:
            refusal = _agreed(attempt, order.sequence, unfit(attempt, order))
            if not refusal:
                status.update(acknowledged=order.sequence, message="")
                return order
            log.error("order %d (%s) refused: %s", order.sequence, order.action, refusal)
            status.update(rejected=order.sequence, message=refusal)
            status.write()
        check_not_passed(attempt)
        time.sleep(POLL if jax.process_count() == 1 else 10 * POLL)
    status.update(message=f"nobody renewed its lease for {lease.seconds:.0f} s")
    return None


def _agreed(attempt: Attempt, serial: int, refusal: str) -> str:
    """The first process's that has one: hosts may lack what others have, and all go on or none does."""
    board = attempt.processes.board
    if board is None:
        return refusal
    said = [text.decode() for text in board.exchange(f"fit-{serial}", refusal.encode())]
    return next((f"{peer}: {text}" for peer, text in zip(board.peers, said, strict=True) if text), "")


def unfit(attempt: Attempt, order: records.Command) -> str:
    """Why an order to restore cannot be carried out; empty where it can."""
    if order.action != records.RESTORE:
        return f"{order.action}: an attempt that waits can be told to restore or to stop"
    if order.epoch != attempt.epoch:
        return f"the order is of epoch {order.epoch}, and this attempt waits for epoch {attempt.epoch}"
    if not order.checkpoint or not order.root_digest or records.parse_checkpoint_name(order.checkpoint) is None:
        return f"restore names no checkpoint and root digest (found {order.checkpoint!r})"
    try:
        manifest = read_manifest(attempt.paths.checkpoint(order.checkpoint))
    except CheckpointError as error:
        return str(error)
    if manifest.root_digest != order.root_digest:
        return f"{order.checkpoint} has root digest {manifest.root_digest}, the order names {order.root_digest}"
    return unowned(attempt)


def unowned(attempt: Attempt) -> str:
    """Why the fence does not give the run to this attempt; empty where it does."""
    try:
        fence = read_fence(attempt.paths)
    except FenceUnreadable as error:
        return str(error)
    if fence is None or (fence.epoch, fence.owner) != (attempt.epoch, attempt.target):
        found = "there is none" if fence is None else f"epoch {fence.epoch}, holder {fence.owner}"
        return f"the fence does not hand the run to {attempt.target} under epoch {attempt.epoch} ({found})"
    return ""


def check_not_passed(attempt: Attempt) -> None:
    """FencedError where the run has gone past the epoch that this attempt waits for."""
    try:
        fence = read_fence(attempt.paths)
    except FenceUnreadable:
        return  # an order finds that out, too
    if fence is not None and fence.epoch > attempt.epoch:
        raise FencedError(
            f"the run was handed to {fence.owner} (epoch {fence.epoch}): nothing to wait for under {attempt.epoch}"
        )
