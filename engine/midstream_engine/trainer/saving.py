"""When the loop saves, and what goes into a checkpoint beside the arrays."""

from __future__ import annotations

import logging
import time
from typing import Any

from midstream_engine import records
from midstream_engine.checkpoint.policy import Retention
from midstream_engine.checkpoint.save import save_checkpoint
from midstream_engine.trainer.attempt import Attempt
from midstream_engine.trainer.setup import Setup
from midstream_engine.trainer.state import TrainState
from midstream_engine.trainer.status import StatusFile
from midstream_engine.trainer.witness import Witness

log = logging.getLogger(__name__)


def train_state(setup: Setup, step: int) -> dict[str, Any]:
    """``train.json``'s state: what continues with the arrays, the same whatever the mesh. Part of the root digest."""
    batch = setup.config.trainer.train_batch_size
    return {
        "step": step,
        "optimizer_count": step,
        "schedule_count": step,
        "next_sample": step * batch,
        "batch_schedule": [{"start": 0, "size": batch}],
        "seed": setup.config.trainer.seed,
        "seq_len": setup.config.model.seq_len,
        "shuffle": setup.config.data.shuffle,
        "data_digest": setup.batches.cache.digest,
        "tokenizer": setup.tokenizer.id,
    }


class Saver:
    """Saves states of one attempt and lets retention do its work."""

    def __init__(self, setup: Setup, attempt: Attempt, status: StatusFile, witness: Witness, now: float):
        self._setup, self._attempt, self._status, self._witness = setup, attempt, status, witness
        self._retention = Retention(setup.config.trainer.checkpointer.policy(), now)
        self._saved_step: int | None = None

    def holds(self, step: int) -> None:
        """The run's directory already has ``step-<step>``: the one that was restored."""
        self._saved_step = step

    def due(self, step: int, now: float) -> bool:
        """Whether the checkpointer's policy wants a save here."""
        return step != self._saved_step and self._retention.decide(step, now) is not None

    def save(self, state: TrainState, step: int, reason: str) -> None:
        """Write ``step-<step>`` unless it is there. Raises what ``save_checkpoint`` raises."""
        if step == self._saved_step:
            return
        before = self._status.value.state
        self._status.update(state=records.SAVING, step=step)
        began = time.monotonic()
        self._retention.saved(began)
        try:
            measured = self._witness.measure(state.model, self._setup.batches.batch(step))
            manifest = save_checkpoint(
                self._attempt.paths,
                state,
                step=step,
                attempt=self._attempt.number,
                epoch=self._attempt.epoch,
                state=train_state(self._setup, step),
                provenance=self._provenance(),
                witness=measured.to_json(),
            )
        except BaseException:
            self._status.update(state=before)
            raise
        self._saved_step = step
        self._status.update(state=before, checkpoint=manifest.name, root_digest=manifest.root_digest)
        self._status.write()
        log.info(
            "saved %s (%s): %.1f MB in %.2f s, root digest %s",
            manifest.name, reason, manifest.size / 1e6, time.monotonic() - began, manifest.root_digest,
        )  # fmt: skip
        for name in self._retention.prune(self._attempt.paths):
            log.info("removed the temporary checkpoint %s", name)

    def _provenance(self) -> dict[str, Any]:
        status = self._status.value
        return {
            "run_id": self._attempt.paths.run_id,
            "attempt": self._attempt.number,
            "epoch": self._attempt.epoch,
            "target": self._attempt.target,
            "time": time.time(),
            "mesh": dict(self._setup.layout.mesh.shape),
            "devices": status.devices,
            "versions": status.versions,
            "config": self._setup.config.resolved(),
        }
