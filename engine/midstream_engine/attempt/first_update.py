"""First update of a resumed run, computed before its reference losses.

The losses are evidence, and no update has to wait for them; what must wait is everything that others can see. The
update is computed before the attempt has a lineage entry, rows of metrics, a saver or an answer to a stop: these begin
once the losses agree (`run_attempt.train`). Until then the status remains ``restoring`` at the checkpoint's step. An
attempt that ends before, killed or for losses that disagree, leaves no trace of the update.

The losses are those of a copy of the restored parameters, made before the update changes them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import jax
import numpy as np

from midstream_engine.attempt.resume import Origin, Resumed
from midstream_engine.computation.programs import CompiledRun
from midstream_engine.computation.train_state import TrainState
from midstream_engine.data.errors import DataError
from midstream_engine.loop.copy_memory import memory_shortage
from midstream_engine.loop.device_memory import DeviceMemory
from midstream_engine.loop.running_update import RunningUpdate
from midstream_engine.models.lm import LmModel
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.runtime.available_memory import available_memory
from midstream_engine.runtime.mesh import place

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FirstUpdate:
    """A computed update that nothing has reported."""

    state: TrainState  # after it
    update: RunningUpdate
    restored: LmModel  # copy of the parameters before it


def precedes_losses(attempt: AttemptRecord, origin: Origin, ready: CompiledRun) -> bool:
    """Return whether the first update may be computed before the reference losses.

    Not of several processes, which measure together; not of a state that is no checkpoint of this run, which a save
    may be due for; not where the update is profiled.
    """
    trainer = ready.setup.config.trainer
    profiled = trainer.profiler and trainer.profiler_start_step <= 0
    return (
        attempt.processes.client is None and origin.own and not profiled and origin.step < trainer.num_train_steps
    )  # fmt: skip


def compute_first_update(ready: CompiledRun, resumed: Resumed) -> FirstUpdate | None:
    """Compute the update after ``resumed``, whose state it takes, and wait for it.

    None, and the state is as it was, where there is no memory for a copy of the parameters, or the batch cannot be
    read.
    """
    setup, programs, step = ready.setup, ready.programs, resumed.step
    model = resumed.state.model
    shortage = DeviceMemory(programs.working_bytes).shortage(model) or memory_shortage(model, lambda: _left(ready))
    if shortage:
        log.info("the first update waits for the reference losses: %s", shortage)
        return None
    began = time.monotonic()
    try:
        batch = setup.batches.batch(step)
    except (DataError, OSError):
        return None  # measuring the losses reports it
    cut = setup.cut_at(step)
    tokens, mask = cut.put(batch.tokens), cut.put(batch.loss_mask)
    number = place(np.array(step, np.int32), setup.layout.replicated())
    restored = jax.block_until_ready(jax.tree.map(_copied, model))
    dispatched = time.monotonic()
    state, result = programs.step(resumed.state, number, tokens, mask)
    jax.block_until_ready(result)
    completed = time.monotonic(), time.time()
    update = RunningUpdate(step, batch, result, dispatched, dispatched - began, completed)
    return FirstUpdate(state, update, restored)


def _left(ready: CompiledRun) -> int | None:
    """Return the bytes of host memory that the update leaves; None: not known."""
    available = available_memory()
    return None if available is None else available - (ready.programs.working_bytes() or 0)


def _copied(array: jax.Array) -> jax.Array:
    return jax.device_put(array, array.sharding, may_alias=False)
