"""Saver of the training loop, which also decides when it saves."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial

from midstream_core import records
from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import FenceRejectedError, FenceUnreadableError
from midstream_core.attempt.status_file import StatusFile
from midstream_core.records import RecordError
from midstream_engine.checkpoint.saving.background_task import BackgroundTask
from midstream_engine.checkpoint.saving.consensus import complete_share
from midstream_engine.checkpoint.saving.retention import Retention, empty_trash
from midstream_engine.checkpoint.saving.save import PendingSave, begin_save
from midstream_engine.checkpoint.saving.save_group import SaveGroup
from midstream_engine.checkpoint.saving.save_rendezvous import abort_save
from midstream_engine.checkpoint.saving.snapshot import Copy
from midstream_engine.checkpoint.stores import in_bucket, open_checkpoints
from midstream_engine.computation.reference_losses import MeasuredLosses, ReferenceLosses
from midstream_engine.computation.setup import Setup
from midstream_engine.computation.train_state import TrainState
from midstream_engine.loop.checkpoint_records import TrainDocuments
from midstream_engine.loop.copy_memory import memory_shortage
from midstream_engine.loop.device_memory import DeviceMemory
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.runtime.host_memory import release_free_memory
from midstream_engine.tracking.metrics_recorder import MetricsRecorder

log = logging.getLogger(__name__)
NOT_SAVED, FENCED = 1, 2  # outcomes of a failed save in the consensus of the processes; the worst is the maximum


class NotSavedError(CheckpointError):
    """Error of a state that was not saved. Training can continue.

    The message has the step and the reason.
    """


class Saver:
    """Saves states of one attempt in the background and prunes old checkpoints.

    The loop waits only for the reference losses and the snapshot. One save at a time is written, hashed and committed
    on a thread of its own, which takes no part in collectives: several processes meet at the coordinator. All methods
    are for the loop's thread, which calls them at the same boundaries on all processes with the same arguments.
    """

    def __init__(
        self,
        setup: Setup,
        attempt: AttemptRecord,
        status: StatusFile,
        reference_losses: ReferenceLosses,
        now: float,
        device_memory: DeviceMemory | None = None,
    ) -> None:
        """Prepare to save.

        Without ``device_memory`` training waits until a state on accelerators is fetched.
        """
        self._device_memory = device_memory
        self._attempt, self._status = attempt, status
        self._documents = TrainDocuments(setup, attempt, status, reference_losses)
        self._processes, self._file_systems = attempt.processes, attempt.file_systems
        self._sequence = 0  # of the newest save of this attempt
        self._retention = Retention(setup.config.trainer.checkpointer.policy(), now)
        self._saved_step: int | None = None  # the newest on the disk
        self._task = BackgroundTask[int]("saving")  # labelled with the step
        self._callbacks: list[Callable[[], None]] = []  # called when the running save is committed
        self._skipped_for: int | None = None
        self._postponed = False  # a save waits until the fence is readable
        self._message = ""  # of a failed save, in the status until one succeeds
        self._metrics: MetricsRecorder | None = None

    def sync_before_saving(self, metrics: MetricsRecorder) -> None:
        """Write the rows of ``metrics`` to disk before a checkpoint includes their steps."""
        self._metrics = metrics

    def mark_saved(self, step: int) -> None:
        """Record that the run's directory already has ``step-<step>``, which was restored."""
        self._saved_step = step

    @property
    def busy(self) -> bool:
        """Whether this process still writes a save."""
        return not self._task.done

    @property
    def failed(self) -> int:
        """Outcome of the save that has not been collected yet.

        0 saved, else NOT_SAVED or FENCED.
        """
        error = self._task.error
        return 0 if error is None else FENCED if isinstance(error, FenceRejectedError) else NOT_SAVED

    def due(self, step: int, now: float) -> bool:
        """Return whether a save is due by the checkpointer's policy and can start.

        Of several processes, 0 decides.

        A temporary checkpoint is skipped while another one is being written; a permanent one waits for it.
        """
        if step in (self._saved_step, self._task.label):
            return False
        kind = self._retention.decide(step, now)
        if self._postponed and self._task.done:
            return True
        if kind == "temporary" and not self._task.done:
            if self._skipped_for != self._task.label:
                self._skipped_for = self._task.label
                log.warning(
                    "step %d: no temporary checkpoint while step-%d is still being written (saves take longer than "
                    "trainer.checkpointer.save_interval)", step, self._task.label,
                )  # fmt: skip
            return False
        return kind is not None

    @property
    def postponed(self) -> bool:
        """Whether a save waits until the fence is readable."""
        return self._postponed

    def postpone(self) -> None:
        """Keep the due save due until the fence is readable."""
        self._postponed = True

    def save(
        self,
        state: TrainState,
        step: int,
        reason: str,
        *,
        last: bool = False,
        callback: Callable[[], None] | None = None,
        not_finite: str = "",
        no_data: bool = False,
    ) -> None:
        """Start to write ``step-<step>`` unless it exists or is being written.

        A running save of another step is waited for.

        Args:
            state: The state to save.
            step: Updates done.
            reason: For the log.
            last: Return when the checkpoint is on the disk, because the loop has nothing else to do.
            callback: Called on the loop's thread when the checkpoint is on the disk; not if saving fails.
            not_finite: Which arrays are not finite and since when; such a state is not saved.
            no_data: The next batch cannot be read: the checkpoint has no reference losses, which are of that batch.

        Raises:
            NotSavedError: The state could not be saved.
            FenceRejectedError: Another attempt owns the run.
        """
        if self._task.label not in (None, step):
            self._wait()
        if step not in (self._saved_step, self._task.label):
            memory = None if last else self._device_memory  # the last save has nothing to copy for
            on_devices = memory is not None and memory.holds_copy(state)
            shortage = "" if last else memory_shortage(state)
            if shortage:
                log.warning("step %d: training waits until the state is written: %s", step, shortage)
            copy = Copy.DEVICES if on_devices else Copy.NONE if last or shortage else Copy.HOST
            if no_data:
                log.warning("step %d is saved without reference losses: the next batch cannot be read", step)
            measure = (lambda: None) if no_data else partial(self._documents.measure, state, step)
            self._begin(state, step, reason, copy, measure, last=last, not_finite=not_finite)
            if shortage:
                with self._saving_status(step):
                    self._task.wait()  # the next update changes the memory that is written
        if self._task.label == step:
            self._callbacks += [callback] if callback else []
            if last:
                error = self._wait()
                if error is not None:
                    raise error
        elif callback:
            callback()

    def poll(self, busy: bool | None = None, failed: int = 0) -> None:
        """Collect the outcome of a finished save; call once at each step boundary.

        A failed save is logged and in the status.

        Args:
            busy: Whether any process still writes; None: only this one counts.
            failed: The worst outcome of all processes.

        Raises:
            FenceRejectedError: Another attempt owns the run.
        """
        if not (self.busy if busy is None else busy):
            self._collect(failed)

    def close(self) -> None:
        """Wait for the running save, also when the loop ends with an error.

        Errors of the save are logged.
        """
        try:
            self._wait()
        except FenceRejectedError as error:
            log.error("step not saved: %s", error)
        self._task.close()

    def _begin(
        self,
        state: TrainState,
        step: int,
        reason: str,
        copy: Copy,
        measure: Callable[[], MeasuredLosses | None],
        *,
        last: bool,
        not_finite: str,
    ) -> None:
        began = time.monotonic()
        self._retention.saved(began)
        self._postponed = False
        make = self._documents.make
        if not_finite:
            raise self._failed(step, CheckpointError(f"the state is not finite: {not_finite}"))
        with self._saving_status(step):
            # The loop waits for the last save anyway. Its losses are measured once the arrays are written: a migration
            # has begun to send these. On CPUs, measuring at the same time would slow both down.
            late = last and self._processes.client is None
            try:
                measured = None if late else measure()
            except CheckpointError as error:
                raise self._failed(step, error) from error
            self._sequence += 1
            group = self._group()
            try:
                if self._metrics is not None:
                    self._metrics.settle()
                pending = begin_save(
                    self._attempt.paths,
                    state,
                    (lambda: make(state, step, measure())) if late else make(state, step, measured),
                    step=step,
                    attempt=self._attempt.number,
                    epoch=self._attempt.epoch,
                    start=self._attempt.start,
                    copy=copy,
                    group=group,
                )
            except (CheckpointError, FenceRejectedError, OSError) as error:
                if group is None:
                    if isinstance(error, FenceRejectedError):
                        raise
                    raise self._failed(step, error) from error
                # The others wait for this process's share, so the failure is reported to them as one of the writing.
                failure = error
                self._task.start(step, lambda: abort_save(group, failure))
                return
            if copy is Copy.DEVICES and self._device_memory is not None:
                self._device_memory.note(state, pending.on_devices)
            stall = time.monotonic() - began if copy is not Copy.NONE else None
            self._task.start(step, lambda: self._finish(pending, reason, began, stall, last))

    def _finish(self, pending: PendingSave, reason: str, began: float, stall: float | None, last: bool) -> None:
        """Write and commit, update the status, and prune. Runs on the saving thread.

        Args:
            pending: The save.
            reason: For the log.
            began: Time of its begin, seconds of the monotonic clock.
            stall: Seconds that training waited; None: until all is written.
            last: The process is about to end, which returns its memory.
        """
        self._sync_metrics()
        manifest = pending.finish()
        stall = time.monotonic() - began if stall is None else stall
        if not last:
            release_free_memory()
        self._status.update(checkpoint=manifest.name, root_digest=manifest.root_digest)
        self._status.try_write()
        if not self._processes.leads:
            if manifest.hosts:
                self._remove_pruned_shares()
                if self._file_systems is not None and self._file_systems.leads:  # the disk may have been full before
                    complete_share(self._attempt.paths.checkpoint(manifest.name), manifest)
            return
        log.info(
            "saved %s (%s): %.1f MB in %.2f s, training waited %.2f s, root digest %s",
            manifest.name, reason, manifest.size / 1e6, time.monotonic() - began, stall, manifest.root_digest,
        )  # fmt: skip
        removed: list[str] = []
        try:
            removed = self._retention.prune(self._attempt.paths, own=(self._attempt.epoch, self._attempt.start))
        except (CheckpointError, RecordError, OSError) as error:
            log.error("old checkpoints not removed: %s", error)
        for name in removed:
            log.info("removed the temporary checkpoint %s", name)
        if manifest.hosts and self._processes.client is not None:
            self._processes.client.send(f"removed-{self._sequence}", json.dumps(removed).encode())

    def _sync_metrics(self) -> None:
        """Sync the metrics to disk before the commit.

        Steps before a commit are not repeated.
        """
        try:
            if self._metrics is not None:
                self._metrics.sync()
        except OSError as error:
            if self._processes.count == 1:
                raise
            log.error("rows of metrics may not be on the disk: %s", error)  # the others continue the same save

    def _remove_pruned_shares(self) -> None:
        """Remove this host's shares of the checkpoints that process 0 has pruned.

        Process 0 has the pins. What an earlier process had begun to remove here is removed too.
        """
        client, file_systems = self._processes.client, self._file_systems
        assert client is not None
        names = json.loads(client.receive(f"removed-{self._sequence}", 0))
        if file_systems is None or not file_systems.leads:
            return
        store = open_checkpoints(self._attempt.paths.checkpoints)
        try:
            for name in set(names) & set(store.names()):
                store.set_aside(name)
            empty_trash(store, self._attempt.paths, time.time())
        except (CheckpointError, OSError) as error:
            log.error("old checkpoints not removed: %s", error)

    def _group(self) -> SaveGroup | None:
        client = self._processes.client
        file_systems = None if in_bucket(self._attempt.paths.checkpoints) else self._file_systems
        return None if client is None else SaveGroup(client, self._sequence, file_systems)

    def _wait(self) -> NotSavedError | None:
        """Wait for the running save; return its error, which has been reported."""
        if self._task.label is None:
            return None
        with self._saving_status(self._status.value.step):
            return self._collect()

    def _collect(self, failed: int = 0) -> NotSavedError | None:
        """Collect a finished save.

        ``failed``: the worst outcome of all processes, so that all act alike.
        """
        outcome = self._task.collect()
        if outcome is None:
            return None
        callbacks, self._callbacks = self._callbacks, []
        step, error = outcome
        if error is None and failed:
            error = CheckpointError("the save failed on another process (hint: its log has the reason)")
        if error is None:
            self._saved_step = step
            if self._message and self._status.value.message == self._message:
                self._status.update(message="")
            self._message = ""
            for callback in callbacks:
                callback()
            return None
        if isinstance(error, (CheckpointError, OSError)):
            return self._failed(step, error)
        raise error

    def _failed(self, step: int, error: Exception) -> NotSavedError:
        """Report the failure in the log and the status, and return the error for the loop."""
        self._postponed = self._postponed or isinstance(error, FenceUnreadableError)
        failure = NotSavedError(f"step {step} not saved: {str(error).partition(chr(10))[0]}")
        self._message = str(failure)
        log.error(self._message)
        self._status.update(message=self._message)
        self._status.try_write()
        return failure

    @contextlib.contextmanager
    def _saving_status(self, step: int) -> Iterator[None]:
        """Set the status to ``saving`` while the loop waits."""
        before = self._status.value.state
        self._status.update(state=records.SAVING, step=step)
        try:
            yield
        finally:
            self._status.update(state=before)
