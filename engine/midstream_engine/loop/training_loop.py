"""Training loop: updates one after another, and requests at their boundaries.

One update is in flight while the results of the one before are handled: update k is dispatched, then the loop waits for
update k - 1, checks it and writes its row. The update is *settled* then. A boundary that has something to do with the
state settles the running update first, because the next one is given the memory of the state: what is saved or
evaluated is the checked state of that boundary.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator

import jax
import numpy as np
from haliax import NamedArray

from midstream_core import records
from midstream_core.attempt.errors import FencedError
from midstream_core.attempt.save_fence import FenceRejectedError, FenceUnreadableError
from midstream_core.attempt.status_file import StatusFile
from midstream_core.json_types import JsonValue
from midstream_engine.computation.finiteness import float_names
from midstream_engine.computation.programs import CompiledRun
from midstream_engine.computation.train_state import TrainState
from midstream_engine.data.batches import Batch
from midstream_engine.data.prefetch import Prefetch
from midstream_engine.loop import flops
from midstream_engine.loop.batch_reader import BatchReader
from midstream_engine.loop.fence_reader import FenceReader
from midstream_engine.loop.finite_check import FiniteCheck
from midstream_engine.loop.profile import Profile
from midstream_engine.loop.requests import Known, Requests, Wanted
from midstream_engine.loop.running_update import RunningUpdate
from midstream_engine.loop.saving import NotSavedError, Saver
from midstream_engine.loop.sealing import seal_together
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.runtime.mesh import place
from midstream_engine.tracking.metrics_recorder import MetricsRecorder

log = logging.getLogger(__name__)
LOG_INTERVAL = 10.0  # seconds between lines of progress in the log
FENCE_POLL_INTERVAL = 1.0  # seconds, while the fence is unreadable after the last step
# Seconds before the expected end of the running update at which the next one is dispatched. Requests that arrive before
# act at that boundary, so that a long update does not delay them by another one.
DISPATCH_LEAD = 0.1
DISPATCH_POLL_INTERVAL = 0.005  # seconds


class Loop:
    """Trains from ``step`` (updates done) until the last step or a request to stop.

    ``step`` counts the settled updates. ``state`` has one more while an update is running.
    """

    def __init__(
        self,
        compiled: CompiledRun,
        saver: Saver,
        requests: Requests,
        attempt: AttemptRecord,
        status: StatusFile,
        metrics: MetricsRecorder,
        state: TrainState,
        step: int,
    ) -> None:
        """Prepare to train.

        Args:
            compiled: Setup and programs of the run.
            saver: Saves checkpoints.
            requests: Commands and signals.
            attempt: The attempt.
            status: Its status.
            metrics: Gets one row per update.
            state: The first state.
            step: Updates done in it, without one that `run` is given.
        """
        setup = compiled.setup
        self.state, self.step = state, step
        self._leads = attempt.processes.leads
        self._setup, self._programs, self._saver = setup, compiled.programs, saver
        self._requests, self._attempt, self._status, self._metrics = requests, attempt, status, metrics
        self._reader = BatchReader(setup, attempt.processes)
        self._trainer = setup.config.trainer
        self._finite = FiniteCheck(self._trainer, status, float_names(setup.template))
        self._running: RunningUpdate | None = None
        self._completed = 0.0  # time of the newest settled update, seconds of the monotonic clock
        self._duration = 0.0  # seconds of that update
        self._fence = FenceReader(attempt.paths, status)
        self._logged = 0.0
        self._later: Wanted | None = None  # a command to stop at a later step
        self._source: Prefetch[tuple[Batch, NamedArray, NamedArray]] | None = None
        self._no_data = False  # the next batch cannot be read, on any process
        profiled = self._trainer if self._leads else dataclasses.replace(self._trainer, profiler=False)
        self._profile = Profile(profiled, attempt, step)
        self._flops = flops.utilisation_columns(setup.config.model, setup.tokenizer.vocab_size)
        device_peak = flops.peak(
            jax.devices()[0].device_kind, self._trainer.precision().compute, self._trainer.precision_of_products()
        )
        self._peak = None if device_peak is None else device_peak * setup.layout.mesh.size

    def run(self, first: RunningUpdate | None = None) -> str:
        """Train and return FINISHED or STOPPED.

        ``first``: the update of ``step``, which was computed, and neither checked nor reported; ``state`` has it.

        Raises:
            EngineError: Training cannot continue.
            FencedError: Another attempt owns the run.
            CheckpointError: The last checkpoint could not be saved.
        """
        self._running = first
        source = self._source = Prefetch(self._prepare, self._boundary)
        self._status.update(state=records.TRAINING, step=self.step)
        try:
            while True:
                self._wait_for_boundary(source)
                requested = self._hold_back(self._requests.look(self._known(self._boundary)))
                self._no_data = requested.facts.no_data
                if self._acts(requested) or not source.ready:
                    self._settle()
                if requested.facts.epoch > self._attempt.epoch or requested.facts.superseded:
                    superseded = requested.facts.epoch == self._attempt.epoch
                    self._fence.refuse(requested.facts.epoch, self.step, superseded)
                with _fence_errors():
                    self._saver.poll(requested.facts.busy, requested.facts.failed)
                if requested.stop and self._stop(requested):
                    return records.STOPPED
                if self._boundary >= self._trainer.num_train_steps:
                    if not requested.facts.unreadable and self._save_last():
                        return records.FINISHED
                    time.sleep(FENCE_POLL_INTERVAL)
                    continue
                self._answer(requested)
                if requested.facts.due and requested.facts.unreadable:
                    self._saver.postpone()
                elif requested.facts.due:
                    self._try_save("checkpointer")
                if requested.facts.no_data:
                    self._save_before_failing()
                self._update(source)
        finally:
            source.close()
            self._profile.close()
            self._saver.close()

    # ------------------------------------------------------------------------------------------------- one update

    def _prepare(self, index: int) -> tuple[Batch, NamedArray, NamedArray]:
        batch, cut = self._reader.batch(index), self._setup.cut_at(index)
        return batch, cut.put(batch.tokens), cut.put(batch.loss_mask)

    def _update(self, source: Prefetch[tuple[Batch, NamedArray, NamedArray]]) -> None:
        """Dispatch the next update, then settle the one that was running."""
        index = self._boundary
        self._profile.before(index)
        began = time.monotonic()
        try:
            batch, tokens, mask = source.next()
        except Exception:
            if self._attempt.processes.client is None:  # otherwise the others do not save at this boundary
                self._no_data = True
                self._save_before_failing()
            raise
        loaded = time.monotonic()
        number = place(np.array(index, np.int32), self._setup.layout.replicated())
        # Before the update: the devices have the consensus when the running update ends, not one update later.
        self._requests.ahead(self._known(index + 1))
        self.state, result = self._programs.step(self.state, number, tokens, mask)
        for array in jax.tree.leaves(result):
            array.copy_to_host_async()
        before, self._running = self._running, RunningUpdate(index, batch, result, loaded, loaded - began)
        if before is not None:
            self._complete(before)

    def _settle(self) -> None:
        """Wait for the running update, if there is one, and handle its results."""
        running, self._running = self._running, None
        if running is not None:
            self._complete(running)

    def _complete(self, running: RunningUpdate) -> None:
        """Wait for an update, check it, and write its row.

        With an evaluation due, ``state`` is the state after the update.
        """
        index, result = running.index, running.result
        loss = float(result.loss)  # waits for the update
        completed, now = running.completed or (time.monotonic(), time.time())
        duration = completed - max(running.dispatched, self._completed)
        self._completed, self._duration = completed, duration
        self.step = index + 1
        self._finite.check(np.asarray(result.kinds), loss, index)
        row = self._row(running, loss, duration, now)
        if self._evaluation_due(self.step) and self._programs.evaluate is not None:
            row.update(self._programs.evaluate(self.state))
        self._metrics.write(row)
        self._status.update(step=self.step)
        if time.monotonic() - self._logged > LOG_INTERVAL or self.step == self._trainer.num_train_steps:
            self._logged = time.monotonic()
            log.info("step %d: loss %.4f, %.0f ms", index, loss, 1000 * duration)

    def _row(self, running: RunningUpdate, loss: float, duration: float, now: float) -> dict[str, JsonValue]:
        """Return the metrics row of an update that was complete at ``now`` (UTC seconds)."""
        setup, index, result = self._setup, running.index, running.result
        tokens, samples = setup.tokens_at(index), setup.batch_schedule.first_sample(index + 1)
        row = {
            "global_step": index,
            "train/loss": loss,
            "optim/learning_rate": float(result.learning_rate),
            "grad/norm/total": float(result.gradient_norm),
            "throughput/tokens_per_second": tokens / duration,
            "throughput/duration": duration,
            "throughput/loading_time": running.loading,
            "throughput/total_tokens": samples * setup.config.model.seq_len,
            "time": now,
            "batch_digest": self._reader.digest(running.batch),
        }
        if result.skipped is not None:
            row["optim/skipped_updates"] = int(result.skipped)
        if self._peak is not None:
            for name, per_token in self._flops.items():
                row[name] = per_token * tokens / duration / self._peak
        return row

    def _evaluation_due(self, step: int) -> bool:
        return step % self._trainer.steps_per_eval == 0 or step == self._trainer.num_train_steps

    # ------------------------------------------------------------------------------------------------- boundaries

    @property
    def _boundary(self) -> int:
        """Number of updates in ``state``, with the running one."""
        return self.step + (self._running is not None)

    def _wait_for_boundary(self, source: Prefetch[tuple[Batch, NamedArray, NamedArray]]) -> None:
        """Wait until the running update is done, or ends soon and the next batch is ready."""
        running = self._running
        if running is None:
            return
        due = max(running.dispatched, self._completed) + self._duration - DISPATCH_LEAD
        while not (running.done or (source.ready and time.monotonic() >= due)):
            time.sleep(DISPATCH_POLL_INTERVAL)

    def _acts(self, requested: Wanted) -> bool:
        """Return whether this boundary needs the running update's results or state."""
        facts, step = requested.facts, self._boundary
        return (
            requested.stop or requested.save or requested.command is not None
            or facts.due or facts.no_data or bool(facts.failed) or facts.epoch > self._attempt.epoch
            or facts.superseded
            or step >= self._trainer.num_train_steps or self._profile.changes(step)
            or (self._evaluation_due(step) and self._programs.evaluate is not None)
        )  # fmt: skip

    def _known(self, step: int) -> Known:
        """Return this process's view for the boundary at ``step``."""
        busy, failed = self._saver.busy, self._saver.failed
        due = self._leads and self._saver.due(step, time.monotonic())
        epoch, unreadable = self._fence.epoch(), bool(self._fence.unreadable)
        no_data = self._source is not None and self._source.failed
        failed = 0 if busy else failed
        return Known(
            epoch=epoch,
            due=due,
            busy=busy,
            failed=failed,
            unreadable=unreadable,
            no_data=no_data,
            superseded=self._fence.superseded(self._attempt.epoch, self._attempt.start),
        )

    def _hold_back(self, requested: Wanted) -> Wanted:
        """Return the requests; hold back a command to stop at a later step until then.

        A newer command replaces it.
        """
        command = requested.command
        if command is not None:
            self._later = None
            if command.action == records.STOP and command.step is not None and command.step > self._boundary:
                log.info("command %d: stops at step %d", command.sequence, command.step)
                self._later = requested
                return dataclasses.replace(requested, stop=requested.signalled, command=None)
        later = self._later
        if later is not None and later.command is not None and self._boundary >= (later.command.step or 0):
            self._later = None
            return dataclasses.replace(requested, stop=True, command=later.command)
        return requested

    def _answer(self, requested: Wanted) -> None:
        """Save if requested; log a command that does not apply to a run in training."""
        if requested.save:
            command = (
                requested.command
                if requested.command is not None and requested.command.action == records.SAVE
                else None
            )
            self._try_save("requested", callback=None if command is None else lambda: self._acknowledge(command))
        if requested.command is not None and requested.command.action not in (records.SAVE, records.STOP):
            log.warning(
                "command %d (%s) does not apply to a run in training",
                requested.command.sequence,
                requested.command.action,
            )

    def _stop(self, requested: Wanted) -> bool:
        """Save, seal if the command has a higher epoch; return whether the attempt ends.

        If the save fails after a signal, the attempt ends, because the sender of the signal will not wait. A command
        can be sent again: training continues, and the status has the reason.
        """
        command = (
            requested.command if requested.command is not None and requested.command.action == records.STOP else None
        )
        self._status.update(state=records.STOPPING, step=self.step)
        if command is None:
            self._save("stop", last=True)
            self._status.update(message=f"stopped by {self._requests.stop_signal} at step {self.step}, saved")
            return True
        try:
            self._save("stop", last=True)
        except NotSavedError:
            self._status.update(state=records.TRAINING, rejected=command.sequence)
            if requested.signalled:  # the command came at the same boundary
                raise
            return False
        if command.epoch > self._attempt.epoch:
            try:
                fence = seal_together(
                    self._attempt.paths, command, self.step, self._attempt.processes, self._attempt.start
                )
            except FenceRejectedError as error:
                raise FencedError(str(error)) from None
            except FenceUnreadableError as error:
                self._status.update(state=records.TRAINING, rejected=command.sequence, message=str(error))
                return requested.signalled  # the state is saved, and the signal comes only once
            log.info("sealed at step %d: ownership %d belongs to %s", self.step, fence.epoch, fence.owner)
        self._acknowledge(command, write=False)
        return True

    def _acknowledge(self, command: records.Command, write: bool = True) -> None:
        self._status.update(acknowledged=command.sequence, message="")
        if write:
            self._status.try_write()
        log.info("command %d (%s) done at step %d", command.sequence, command.action, self.step)

    def _save_last(self) -> bool:
        """Save the state of the last step; return whether it is saved.

        False where the fence became unreadable by then. Of several processes others may read it: they fail together.
        Raises NotSavedError.
        """
        try:
            self._save("end of training", last=True)
        except NotSavedError:
            if self._attempt.processes.client is not None or not self._saver.postponed:
                raise
            return False
        return True

    def _save_before_failing(self) -> None:
        """Save the updates of this attempt: the next batch cannot be read."""
        if self._completed:
            self._try_save("the next batch cannot be read", last=True)

    def _try_save(self, reason: str, *, last: bool = False, callback: Callable[[], None] | None = None) -> None:
        """Save; the saver reports a failure."""
        with contextlib.suppress(NotSavedError):
            self._save(reason, last=last, callback=callback)

    def _save(self, reason: str, *, last: bool = False, callback: Callable[[], None] | None = None) -> None:
        assert self._running is None, "the state has an update more than the step says"
        with _fence_errors():
            self._saver.save(
                self.state, self.step, reason, last=last, callback=callback, not_finite=self._finite.reason,
                no_data=self._no_data,
            )  # fmt: skip


@contextlib.contextmanager
def _fence_errors() -> Iterator[None]:
    """Turn the fence's rejection of a commit into the end of the attempt."""
    try:
        yield
    except FenceRejectedError as error:
        raise FencedError(str(error)) from None
