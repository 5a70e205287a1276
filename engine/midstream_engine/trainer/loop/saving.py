"""When the loop saves, and what goes into a checkpoint beside the arrays."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from midstream_engine import records
from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.saving.background_task import Background
from midstream_engine.checkpoint.saving.group_save import Group, give_up
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.save_fence import Fenced, FenceUnreadable
from midstream_engine.checkpoint.stores import in_bucket, open_checkpoints
from midstream_engine.optim.adam import adam_count, schedule_count
from midstream_engine.records import RecordError
from midstream_engine.tracking.metrics_recorder import Recorder
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.reference_losses import ReferenceLosses
from midstream_engine.trainer.attempt.setup import Setup
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop.train_state import TrainState

log = logging.getLogger(__name__)
NOT_SAVED, FENCED = 1, 2  # how a save ended that did not end well, as processes tell each other


def train_state(setup: Setup, step: int, optimizer: Any) -> dict[str, Any]:
    """``train.json``'s state: what continues with the arrays, the same whatever the mesh. Part of the root digest.

    The counts are the ``optimizer``'s own: Adam does not count what SkipStep left out, and an imported run's counts
    need not be its steps.
    """
    return {
        "step": step,
        "optimizer_count": int(np.asarray(adam_count(optimizer))),
        "schedule_count": int(np.asarray(schedule_count(optimizer))),
        "next_sample": setup.batch_schedule.first_sample(step),
        "batch_schedule": setup.batch_schedule.to_json(),
        "seed": setup.config.trainer.seed,
        "seq_len": setup.config.model.seq_len,
        "shuffle": setup.config.data.shuffle,
        "data_digest": setup.batches.cache.digest,
        "tokenizer": setup.tokenizer.id,
    }


class NotSaved(CheckpointError):
    """A state was not saved; the message says which and why. Training can go on."""


class Saver:
    """Saves states of one attempt behind the training loop and lets retention do its work.

    The loop stands still for the witness and the snapshot alone; one save at a time is written, hashed and committed
    on a thread of its own, which takes no part in collectives: several processes meet at their board. Every method
    belongs to the loop's thread, and is called at the same boundaries on all processes, with what they have agreed on.
    """

    def __init__(
        self,
        setup: Setup,
        attempt: Attempt,
        status: StatusFile,
        reference_losses: ReferenceLosses,
        now: float,
    ):
        self._setup, self._attempt, self._status, self._witness = setup, attempt, status, reference_losses
        self._processes, self._places = attempt.processes, attempt.places
        self._serial = 0  # of the newest save of this attempt
        self._retention = Retention(setup.config.trainer.checkpointer.policy(), now)
        self._saved_step: int | None = None  # the newest that is on the disk
        self._behind = Background[int]("saving")  # labelled with the step
        self._then: list[Callable[[], None]] = []  # what waits for the save in flight
        self._skipped_for: int | None = None
        self._owed = False  # a save that waits for the fence to be readable
        self._complaint = ""  # what the status says of a failed save, until one succeeds
        self._rows: Recorder | None = None

    def after(self, rows: Recorder) -> None:
        """No checkpoint before the rows of the steps that led to it."""
        self._rows = rows

    def holds(self, step: int) -> None:
        """The run's directory already has ``step-<step>``: the one that was restored."""
        self._saved_step = step

    @property
    def busy(self) -> bool:
        """Whether a save is still in flight, as far as this process knows."""
        return not self._behind.done

    @property
    def failed(self) -> int:
        """How the save ended that has not been collected yet: 0 well, else NOT_SAVED or FENCED."""
        error = self._behind.error
        return 0 if error is None else FENCED if isinstance(error, Fenced) else NOT_SAVED

    def due(self, step: int, now: float) -> bool:
        """Whether the checkpointer's policy wants a save here, and there is room for it behind the loop. Of several
        processes, the first decides.

        A temporary checkpoint is put off while another one is being written; a permanent one is worth waiting for.
        """
        if step in (self._saved_step, self._behind.label):
            return False
        kind = self._retention.decide(step, now)
        if self._owed and self._behind.done:
            return True
        if kind == "temporary" and not self._behind.done:
            if self._skipped_for != self._behind.label:
                self._skipped_for = self._behind.label
                log.warning(
                    "step %d: no temporary checkpoint while step-%d is still being written (saves take longer than "
                    "trainer.checkpointer.save_interval)", step, self._behind.label,
                )  # fmt: skip
            return False
        return kind is not None

    def put_off(self) -> None:
        """What is due cannot be saved while the fence is unreadable; it is due until it is."""
        self._owed = True

    def save(
        self, state: TrainState, step: int, reason: str, *, last: bool = False, then: Callable[[], None] | None = None
    ) -> None:
        """Begin to write ``step-<step>`` unless it is there or under way. A save in flight is waited for.

        ``last``: the loop has nothing else to do, so return when it is on the disk. ``then`` is called on the loop's
        thread when it is; not where it fails. Raises NotSaved where it failed, Fenced where the run is someone else's.
        """
        if self._behind.label not in (None, step):
            self._wait()
        if step not in (self._saved_step, self._behind.label):
            self._begin(state, step, reason, copy=not last)
        if self._behind.label == step:
            self._then += [then] if then else []
            if last:
                error = self._wait()
                if error is not None:
                    raise error
        elif then:
            then()

    def poll(self, busy: bool | None = None, failed: int = 0) -> None:
        """Once at each step boundary: what became of the save in flight. A failed one is logged and in the status.
        ``busy``, ``failed``: of several processes the worst. Raises Fenced where the run is someone else's."""
        if not (self.busy if busy is None else busy):
            self._collect(failed)

    def close(self) -> None:
        """Wait for the save in flight: no end of the loop, however sudden, cuts it off. Raises nothing of it."""
        try:
            self._wait()
        except Fenced as error:
            log.error("step not saved: %s", error)
        self._behind.close()

    def _begin(self, state: TrainState, step: int, reason: str, *, copy: bool) -> None:
        began = time.monotonic()
        self._retention.saved(began)
        self._owed = False
        self._serial += 1
        group = self._group()
        with self._standing_still(step):
            measured = self._witness.measure(state.model, self._setup.batches.batch(step))
            try:
                if self._rows is not None:
                    self._rows.settle()
                pending = begin_save(
                    self._attempt.paths,
                    state,
                    step=step,
                    attempt=self._attempt.number,
                    epoch=self._attempt.epoch,
                    state=train_state(self._setup, step, state.optimizer),
                    provenance=self._provenance(),
                    reference_losses=measured.to_json(),
                    copy=copy,
                    group=group,
                )
            except (CheckpointError, Fenced, OSError) as error:
                if group is None:
                    if isinstance(error, Fenced):
                        raise
                    raise self._failed(step, error) from error
                # The others wait for this process's share: they learn of it as of a save that failed later.
                failure = error
                self._behind.start(step, lambda: give_up(group, failure))
                return
        stall = time.monotonic() - began
        self._behind.start(step, lambda: self._finish(pending, reason, began, stall))

    def _finish(self, pending: PendingSave, reason: str, began: float, stall: float) -> None:
        """On the saving thread: write and commit, tell the status, let retention work."""
        self._sync_rows()
        manifest = pending.finish()
        self._status.update(checkpoint=manifest.name, root_digest=manifest.root_digest)
        self._status.tell()
        if not self._processes.leads:
            if manifest.hosts:
                self._remove_what_the_first_removed()
            return
        log.info(
            "saved %s (%s): %.1f MB in %.2f s, training stood still for %.2f s, root digest %s",
            manifest.name, reason, manifest.size / 1e6, time.monotonic() - began, stall, manifest.root_digest,
        )  # fmt: skip
        removed: list[str] = []
        try:
            removed = self._retention.prune(self._attempt.paths)
        except (CheckpointError, RecordError, OSError) as error:
            log.error("old checkpoints not removed: %s", error)
        for name in removed:
            log.info("removed the temporary checkpoint %s", name)
        if manifest.hosts and self._processes.board is not None:
            self._processes.board.post(f"removed-{self._serial}", json.dumps(removed).encode())

    def _sync_rows(self) -> None:
        """Before the checkpoint counts: after that their steps are not done again."""
        try:
            if self._rows is not None:
                self._rows.sync()
        except OSError as error:
            if self._processes.count == 1:
                raise
            log.error("rows of metrics may not be on the disk: %s", error)  # the others are at the same save

    def _remove_what_the_first_removed(self) -> None:
        """The shares of a spread checkpoint go with it; pins lie with process 0."""
        board, places = self._processes.board, self._places
        assert board is not None
        names = json.loads(board.take(f"removed-{self._serial}", 0))
        if places is None or not places.leads:
            return
        shelf = open_checkpoints(self._attempt.paths.checkpoints)
        try:
            for name in set(names) & set(shelf.names()):
                shelf.set_aside(name)
                shelf.empty(name)
        except OSError as error:
            log.error("old checkpoints not removed: %s", error)

    def _group(self) -> Group | None:
        board = self._processes.board
        places = None if in_bucket(self._attempt.paths.checkpoints) else self._places
        return None if board is None else Group(board, self._serial, places)

    def _wait(self) -> NotSaved | None:
        """Stand still until nothing is in flight; the error that the save ended with, after reporting it."""
        if self._behind.label is None:
            return None
        with self._standing_still(self._status.value.step):
            return self._collect()

    def _collect(self, failed: int = 0) -> NotSaved | None:
        """``failed``: how it went with the worst of the processes; what they wait for together they see alike."""
        outcome = self._behind.collect()
        if outcome is None:
            return None
        then, self._then = self._then, []
        step, error = outcome
        if error is None and failed:
            error = CheckpointError("another process did not hear that it was; its log says why")
        if error is None:
            self._saved_step = step
            if self._complaint and self._status.value.message == self._complaint:
                self._status.update(message="")
            self._complaint = ""
            for call in then:
                call()
            return None
        if isinstance(error, (CheckpointError, OSError)):
            return self._failed(step, error)
        raise error

    def _failed(self, step: int, error: Exception) -> NotSaved:
        """The error for the loop; the person reads it in the log and in the status at once."""
        self._owed = self._owed or isinstance(error, FenceUnreadable)
        failure = NotSaved(f"step {step} not saved: {str(error).partition(chr(10))[0]}")
        self._complaint = str(failure)
        log.error(self._complaint)
        self._status.update(message=self._complaint)
        self._status.tell()
        return failure

    @contextlib.contextmanager
    def _standing_still(self, step: int) -> Iterator[None]:
        """The status says ``saving`` as long as the loop waits for it, and no longer."""
        before = self._status.value.state
        self._status.update(state=records.SAVING, step=step)
        try:
            yield
        finally:
            self._status.update(state=before)

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
            "validation": self._setup.validation.to_json() if self._setup.validation else {},
        }
