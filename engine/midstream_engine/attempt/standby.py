"""Standby: compiled, rehearsed attempt that waits for a state trained elsewhere.

A standby is not part of the run: no fence, lineage, checkpoint or metrics. Whatever it leaves undone would add to the
downtime, so it runs a step of every program, computes the reference losses, and allocates the memory for both.
"""

from __future__ import annotations

import logging
import math
import time

import jax
import numpy as np

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError, EngineError, FencedError
from midstream_core.attempt.save_fence import FenceUnreadableError, read_fence
from midstream_core.attempt.standby_lease import Lease
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt.resume import Origin, restore
from midstream_engine.checkpoint.array_names import flatten_shardings
from midstream_engine.checkpoint.loading.arrival import Arrival
from midstream_engine.checkpoint.loading.checkpoint_records import read_manifest
from midstream_engine.checkpoint.stores import in_bucket, open_checkpoints
from midstream_engine.computation.programs import Programs
from midstream_engine.computation.reference_losses import TOLERANCE, worst_error
from midstream_engine.computation.setup import Setup
from midstream_engine.loop.requests import Known, Requests
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)
REHEARSED = 3  # updates; the first two may include one-time work
POLL_INTERVAL = 0.02  # seconds


def rehearse(origin: Origin, setup: Setup, programs: Programs, status: StatusFile) -> float:
    """Run a few updates on ``origin``'s state, then drop it.

    Returns the seconds of the last update.

    Raises EngineError where these devices compute other losses than the checkpoint's writer did, or a loss that is not
    finite: found while the source still trains.
    """
    status.update(state=records.RESTORING, message=f"rehearses on {origin.name}")
    resumed, train = restore(origin, setup)
    status.update(state=records.COMPILING, message="compiles")  # since the setup, beside the restore
    programs.wait()
    status.update(state=records.RESTORING, message=f"rehearses on {origin.name}")
    batch = setup.batches.under(origin.batch_schedule).batch(resumed.step)
    measured = programs.reference_losses.measure(resumed.state.model, batch)
    recorded = [float(loss) for loss in (train.get("reference_losses") or {}).get("losses", [])]
    error = worst_error(recorded, measured.losses)
    if recorded and error > TOLERANCE:
        raise EngineError(
            f"rehearsal: losses of {origin.name} differ by {records.difference_text(error)} from those recorded "
            f"with it (allowed {TOLERANCE:.0e}): these devices do not compute the same run"
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


def follow_arrival(attempt: AttemptRecord, origin: Origin, setup: Setup) -> Arrival | None:
    """Return the reader of the run's next checkpoint while it is copied here, or None.

    The next checkpoint is after ``origin``, on which the standby rehearses. None where several processes restore, or
    checkpoints are in a bucket.
    """
    if attempt.processes.client is not None or in_bucket(attempt.paths.checkpoints):
        return None

    def find() -> str | None:
        """Return the directory of the newest checkpoint after ``origin``."""
        names = open_checkpoints(attempt.paths.checkpoints).names()
        newer = {key: name for name in names if (key := records.parse_checkpoint_name(name)) and key[0] > origin.step}
        return attempt.paths.checkpoint(newer[max(newer)]) if newer else None

    shardings = flatten_shardings(setup.template, setup.shardings)
    entries = [entry for entry in read_manifest(origin.directory).array_entries if entry.name in shardings]
    return Arrival(find, entries, shardings)


def wait_on_standby(
    attempt: AttemptRecord, requests: Requests, status: StatusFile, arrival: Arrival | None = None
) -> records.Command | None:
    """Wait for a command to restore, and return it.

    None after a stop, or once the lease has expired. ``arrival`` reads in the same time, and goes on if a
    command came.

    A command that does not fit (another epoch, a missing checkpoint, a fence with another owner) is rejected, and the
    standby waits on. Raises FencedError where the run has passed this attempt's epoch.
    """
    command = None
    if arrival is not None:
        arrival.start()
    try:
        command = _command(attempt, requests, status)
    finally:
        if arrival is not None and command is None:
            arrival.close()
    return command


def _command(attempt: AttemptRecord, requests: Requests, status: StatusFile) -> records.Command | None:
    status.update(state=records.WAITING, message=f"waits for its state, ownership {attempt.epoch}")
    lease = Lease(attempt.files.lease)
    while True:
        # Process 0 has the lease, and all processes leave at the same look: each look waits for all.
        requested = requests.look(Known(due=attempt.processes.leads and lease.over()))
        command = requested.command
        if requested.stop:
            status.update(acknowledged=status.value.acknowledged if command is None else command.sequence, message="")
            log.info("stopped while on standby")
            return None
        if command is not None:
            refusal = agreed(attempt, command.sequence, unfit(attempt, command))
            if not refusal:
                status.update(acknowledged=command.sequence, message="")
                return command
            log.error("command %d (%s) rejected: %s", command.sequence, command.action, refusal)
            status.update(rejected=command.sequence, message=refusal)
            status.try_write()
        if requested.facts.due:
            break
        check_not_passed(attempt)
        time.sleep(POLL_INTERVAL if jax.process_count() == 1 else 10 * POLL_INTERVAL)
    status.update(message=f"the standby's lease was not renewed for {lease.seconds:.0f} s")
    return None


def agreed(attempt: AttemptRecord, sequence: int, refusal: str) -> str:
    """Return the reason of the first process that rejects.

    Hosts may lack files, and all go on or none does.
    """
    client = attempt.processes.client
    if client is None:
        return refusal
    reasons = [text.decode() for text in client.exchange(f"fit-{sequence}", refusal.encode())]
    return next((f"{peer}: {text}" for peer, text in zip(client.peers, reasons, strict=True) if text), "")


def unfit(attempt: AttemptRecord, command: records.Command) -> str:
    """Return why a command to restore cannot be carried out; empty where it can."""
    if command.action != records.RESTORE:
        return f"{command.action}: a standby accepts restore and stop only"
    if command.epoch != attempt.epoch:
        return f"the command is of ownership {command.epoch}, and this attempt waits for ownership {attempt.epoch}"
    if not command.checkpoint or not command.root_digest or records.parse_checkpoint_name(command.checkpoint) is None:
        return f"restore names no checkpoint and root digest (found {command.checkpoint!r})"
    try:
        manifest = read_manifest(attempt.paths.checkpoint(command.checkpoint))
    except CheckpointError as error:
        return str(error)
    if manifest.root_digest != command.root_digest:
        return f"{command.checkpoint} has root digest {manifest.root_digest}, the command names {command.root_digest}"
    return unowned(attempt)


def unowned(attempt: AttemptRecord) -> str:
    """Return why this attempt does not own the fence; empty where it does."""
    try:
        fence = read_fence(attempt.paths)
    except FenceUnreadableError as error:
        return str(error)
    if fence is None or (fence.epoch, fence.owner) != (attempt.epoch, attempt.target):
        owner = "there is none" if fence is None else f"ownership {fence.epoch}, owner {fence.owner}"
        return f"the fence does not name {attempt.target} as owner of ownership {attempt.epoch} ({owner})"
    return ""


def check_not_passed(attempt: AttemptRecord) -> None:
    """Raise FencedError if the run has passed the epoch that this attempt waits for."""
    try:
        fence = read_fence(attempt.paths)
    except FenceUnreadableError:
        return  # the check of a command reports it
    if fence is not None and fence.epoch > attempt.epoch:
        raise FencedError(
            f"the run has passed to {fence.owner} (ownership {fence.epoch}); "
            f"this attempt waits for ownership {attempt.epoch}"
        )
