"""State beside the arrays of a checkpoint, and where the checkpoint comes from."""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.status_file import StatusFile
from midstream_core.json_types import JsonValue
from midstream_engine.array_types import PyTree
from midstream_engine.checkpoint.saving.checkpoint_writer import train_document
from midstream_engine.checkpoint.train_document import TrainDocument
from midstream_engine.computation.finiteness import describe, find_not_finite
from midstream_engine.computation.reference_losses import MeasuredLosses, ReferenceLosses
from midstream_engine.computation.setup import Setup
from midstream_engine.computation.train_state import TrainState
from midstream_engine.data.errors import DataError
from midstream_engine.optim.optimizer import schedule_count, update_count
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)


class TrainDocuments:
    """Maker of the ``train.json`` of an attempt's checkpoints."""

    def __init__(
        self, setup: Setup, attempt: AttemptRecord, status: StatusFile, reference_losses: ReferenceLosses
    ) -> None:
        self._setup, self._attempt, self._status, self._reference_losses = setup, attempt, status, reference_losses

    def make(self, state: TrainState, step: int, measured: MeasuredLosses | None) -> TrainDocument:
        """Return the state's ``train.json``.

        ``measured``: its reference losses; None: it has none. Raises CheckpointError where JSON has no such value.
        """
        return train_document(
            train_state(self._setup, step, state.optimizer),
            provenance(self._setup, self._attempt, self._status),
            measured.to_json() if measured is not None else None,
        )

    def measure(self, state: TrainState, step: int) -> MeasuredLosses | None:
        """Measure the reference losses of a state.

        None where the batch cannot be read; of several processes the others may read it, and measure together.

        Raises:
            DataError: This process of several cannot read the batch.
            CheckpointError: A loss is not finite: the state came from no update of this attempt, which would have been
                checked.
        """
        try:
            batch = self._setup.batches.batch(step)
        except (DataError, OSError) as error:
            if self._attempt.processes.client is not None:
                raise
            log.warning("step %d is saved without reference losses: %s", step, error)
            return None
        measured = self._reference_losses.measure(state.model, batch)
        if not all(map(math.isfinite, measured.losses)):
            arrays = describe(find_not_finite(state))
            why = f"the state is not finite: {arrays}" if arrays else "the losses of the next batch are not finite"
            raise CheckpointError(why)
        return measured


def train_state(setup: Setup, step: int, optimizer: PyTree) -> dict[str, JsonValue]:
    """Return the state in ``train.json``: independent of the mesh, in the root digest.

    The counts are the ``optimizer``'s own: Adam does not count updates that SkipStep skips, and an imported run's
    counts may differ from its steps.
    """
    return {
        "step": step,
        "optimizer_count": int(np.asarray(update_count(optimizer))),
        "schedule_count": int(np.asarray(schedule_count(optimizer))),
        "next_sample": setup.batch_schedule.first_sample(step),
        "batch_schedule": setup.batch_schedule.to_json(),
        "seed": setup.config.trainer.seed,
        "seq_len": setup.config.model.seq_len,
        "shuffle": setup.config.data.shuffle,
        "data_digest": setup.batches.cache.digest,
        "tokenizer": setup.tokenizer.id,
    }


def provenance(setup: Setup, attempt: AttemptRecord, status: StatusFile) -> dict[str, Any]:
    """Return which attempt saves, on what, and with which configuration."""
    return {
        "run_id": attempt.paths.run_id,
        "attempt": attempt.number,
        "epoch": attempt.epoch,
        "target": attempt.target,
        "time": time.time(),
        "mesh": dict(setup.layout.mesh.shape),
        "devices": status.value.devices,
        "versions": status.value.versions,
        "config": setup.config.resolved(),
        "validation": setup.validation.to_json() if setup.validation else {},
    }
