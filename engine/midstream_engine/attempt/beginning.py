"""The state that training begins with: restored and proven, or fresh."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from dataclasses import dataclass

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.attempt.first_update import compute_first_update, precedes_losses
from midstream_engine.attempt.replica import ReplayResult
from midstream_engine.attempt.restore_evidence import ModelLosses, check_losses_agree, prove
from midstream_engine.attempt.resume import Origin, restore
from midstream_engine.checkpoint.loading.arrival import Arrival
from midstream_engine.computation.programs import CompiledRun
from midstream_engine.computation.train_state import TrainState
from midstream_engine.loop.running_update import RunningUpdate
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    """The state that training starts with, and its origin."""

    state: TrainState
    step: int
    origin: Origin | None
    root_digest: str | None
    replayed: ReplayResult | None = None  # of the replica that computed it and is promoted now
    first: RunningUpdate | None = None  # update of ``step`` that is computed already: ``state`` has it


def begin(
    attempt: AttemptRecord,
    ready: CompiledRun,
    origin: Origin | None,
    status: StatusFile,
    arrival: Arrival | None = None,
    *,
    trains: bool = False,
) -> Beginning:
    """Restore the state of ``origin`` and write ``restore.json``.

    Without an origin, make the state of step 0.

    Args:
        attempt: The attempt.
        ready: Setup and programs.
        origin: The checkpoint to continue; None for a fresh start.
        status: The attempt's status.
        arrival: Has read a part of the state while it arrived.
        trains: Training follows: its first update may be computed before the reference losses.

    Raises:
        ContradictionError: The reference losses show that the restored state is not the saved one.
    """
    setup, programs = ready.setup, ready.programs
    if origin is None:
        log.info("fresh start")
        state = setup.fresh_state(attempt.processes)
        programs.wait()
        status.update(compiled_seconds=programs.compiled_seconds)
        return Beginning(state, 0, None, None)
    status.update(state=records.RESTORING)
    began = time.monotonic()
    losses = ModelLosses(origin, ready)
    ahead = trains and precedes_losses(attempt, origin, ready)
    # Alone: several processes restore at different speeds, and measure together.
    model_ready = losses.begin if attempt.processes.client is None and not ahead else None
    try:
        resumed, train = restore(origin, setup, model_ready, arrival)
    finally:
        if arrival is not None:
            arrival.close()
    seconds = {"restore": time.monotonic() - began}
    waited, first, evidence = 0.0, None, None
    if ahead:
        waited = programs.wait_for_step()
        first = compute_first_update(ready, resumed)
    if origin.same_run:
        model = resumed.state.model if first is None else first.restored
        evidence = prove(origin, resumed, model, train, setup.layout.mesh.size, losses, seconds)
    # Time to compile counts only where training waits for it: not during the restore, and not on standby.
    if first is None:
        waited += losses.waited + programs.wait()
    status.update(compiled_seconds=programs.compiled_seconds)
    if evidence is not None and attempt.processes.leads and not _was_started_before(attempt, origin):
        seconds = {**evidence.seconds, "compile": 0.0 if attempt.standby else waited}
        if first is not None:
            del seconds["reference_losses"]  # of what the first update waited for
        dataclasses.replace(evidence, seconds=seconds).write(attempt.files.restore)
    if evidence is not None:
        check_losses_agree(evidence, origin, setup.config)
    if origin.own:
        status.update(checkpoint=origin.name, root_digest=resumed.root_digest)
    began = time.monotonic()
    digest = setup.batches.batch(resumed.step).digest
    log.info(
        "continuing at step %d: sample %d, epoch %.3f of the data, batch %s (found in %.3f s)",
        resumed.step, setup.batch_schedule.first_sample(resumed.step), setup.batches.epoch(resumed.step), digest[:12],
        time.monotonic() - began,
    )  # fmt: skip
    state, update = (resumed.state, None) if first is None else (first.state, first.update)
    return Beginning(state, resumed.step, origin, resumed.root_digest, first=update)


def _was_started_before(attempt: AttemptRecord, origin: Origin) -> bool:
    """Return whether ``restore.json`` is of an earlier start of this attempt.

    The earlier start began with the checkpoint that a certificate names; this one continues from what it has saved
    since.
    """
    saved = records.parse_checkpoint_name(origin.name)
    own = origin.own and saved is not None and saved[1] == attempt.number
    return own and os.path.exists(attempt.files.restore)
