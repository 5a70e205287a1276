"""State beside the arrays of a checkpoint, and where the checkpoint comes from."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from midstream_engine.optim.optimizer import schedule_count, update_count
from midstream_engine.trainer.computation.setup import Setup
from midstream_engine.trainer.runtime.attempt_record import Attempt
from midstream_engine.trainer.runtime.status_file import StatusFile


def train_state(setup: Setup, step: int, optimizer: Any) -> dict[str, Any]:
    """Return the state in ``train.json``, which does not depend on the mesh.

    It is part of the root digest.

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


def provenance(setup: Setup, attempt: Attempt, status: StatusFile) -> dict[str, Any]:
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
