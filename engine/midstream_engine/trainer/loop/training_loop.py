"""The training loop: one update after the other, and what was asked for at the boundaries between them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from haliax import NamedArray

from midstream_engine import records
from midstream_engine.checkpoint.saving.save_fence import Fenced, FenceUnreadable, read_fence, seal
from midstream_engine.data.order.batches import Batch
from midstream_engine.data.order.prefetch import Prefetch
from midstream_engine.errors import EngineError, FencedError
from midstream_engine.tracking.metrics_recorder import Recorder
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.setup import Setup
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop import flops
from midstream_engine.trainer.loop.batch_reader import Reader
from midstream_engine.trainer.loop.profile import Profile
from midstream_engine.trainer.loop.requests import Known, Requests, Wanted
from midstream_engine.trainer.loop.saving import NotSaved, Saver
from midstream_engine.trainer.loop.train_state import TrainState
from midstream_engine.trainer.loop.train_step import StepResult
from midstream_engine.trainer.runtime.mesh import place
from midstream_engine.trainer.runtime.programs import Programs

log = logging.getLogger(__name__)
LOG_EVERY = 10.0  # seconds between lines of progress in the log
FENCE_POLL = 1.0  # seconds between two looks at an unreadable fence, once all steps are done


class Loop:
    """Trains from ``step`` until the end or until it is told to stop. ``step``: updates done."""

    def __init__(
        self,
        setup: Setup,
        programs: Programs,
        saver: Saver,
        requests: Requests,
        attempt: Attempt,
        status: StatusFile,
        metrics: Recorder,
        state: TrainState,
        step: int,
    ):
        self.state, self.step = state, step
        self._leads = attempt.processes.leads
        self._setup, self._programs, self._saver = setup, programs, saver
        self._requests, self._attempt, self._status, self._metrics = requests, attempt, status, metrics
        self._reader = Reader(setup, attempt.processes)
        self._trainer = setup.config.trainer
        self._fence_seen: tuple[int, int] | None = None
        self._epoch = 0  # of the fence, as it was last seen
        self._unreadable = ""  # why the fence cannot be read; empty where it can
        self._logged = 0.0
        self._later: Wanted | None = None  # an order to stop at a step that is still to come
        profiled = self._trainer if self._leads else dataclasses.replace(self._trainer, profiler=False)
        self._profile = Profile(profiled, attempt, step)
        self._flops = flops.flops_per_token(setup.config.model, setup.tokenizer.vocab_size)
        device_peak = flops.peak(jax.devices()[0].device_kind) if "16" in str(setup.policy.compute_dtype) else None
        self._peak = None if device_peak is None else device_peak * setup.layout.mesh.size

    def run(self) -> str:
        """The state in which it ended: FINISHED or STOPPED. Raises EngineError, FencedError, CheckpointError."""
        source = Prefetch(self._prepare, self.step)
        self._status.update(state=records.TRAINING, step=self.step)
        try:
            while True:
                wanted = self._not_yet(self._requests.look(self._known(self.step)))
                self._check_fence(wanted.known.epoch)
                with _refused_by_fence():
                    self._saver.poll(wanted.known.busy, wanted.known.failed)
                if wanted.stop and self._stop(wanted):
                    return records.STOPPED
                if self.step >= self._trainer.num_train_steps:
                    if wanted.known.unreadable:
                        time.sleep(FENCE_POLL)
                        continue
                    self._save("end of training", last=True)
                    return records.FINISHED
                self._answer(wanted)
                if wanted.known.due and wanted.known.unreadable:
                    self._saver.put_off()
                elif wanted.known.due:
                    self._try_save("checkpointer")
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
        self._profile.before(self.step)
        began = time.monotonic()
        batch, tokens, mask = source.next()
        loaded = time.monotonic()
        number = place(np.array(self.step, np.int32), self._setup.layout.replicated())
        self.state, result = self._programs.step(self.state, number, tokens, mask)
        self._requests.ahead(self._known(self.step + 1))  # while the devices are at it
        loss = float(result.loss)  # waits for the update
        duration = time.monotonic() - loaded
        index, self.step = self.step, self.step + 1
        self._check_finite(loss, index)
        row = self._row(index, batch, loss, result, duration, loaded - began)
        if self._programs.evaluate is not None and self._evaluation_due():
            row.update(self._programs.evaluate(self.state))
        self._metrics.write(row)
        self._status.update(step=self.step)
        if time.monotonic() - self._logged > LOG_EVERY or self.step == self._trainer.num_train_steps:
            self._logged = time.monotonic()
            log.info("step %d: loss %.4f, %.0f ms", index, loss, 1000 * duration)

    def _row(
        self, index: int, batch: Batch, loss: float, result: StepResult, duration: float, loading: float
    ) -> dict[str, Any]:
        setup = self._setup
        tokens, samples = setup.tokens_at(index), setup.batch_schedule.first_sample(index + 1)
        row = {
            "global_step": index,
            "train/loss": loss,
            "optim/learning_rate": float(result.learning_rate),
            "grad/norm/total": float(result.gradient_norm),
            "throughput/tokens_per_second": tokens / duration,
            "throughput/duration": duration,
            "throughput/loading_time": loading,
            "throughput/total_tokens": samples * setup.config.model.seq_len,
            "time": time.time(),
            "batch_digest": self._reader.digest(batch),
        }
        if result.skipped is not None:
            row["optim/skipped_updates"] = int(result.skipped)
        if self._peak is not None:
            row["throughput/mfu"] = self._flops * tokens / duration / self._peak
        return row

    def _evaluation_due(self) -> bool:
        return self.step % self._trainer.steps_per_eval == 0 or self.step == self._trainer.num_train_steps

    def _check_finite(self, loss: float, index: int) -> None:
        if math.isnan(loss) and self._trainer.crash_on_nan:
            raise EngineError(f"the loss of step {index} is NaN (trainer.crash_on_nan: false trains on)")
        if math.isinf(loss) and self._trainer.crash_on_inf:
            raise EngineError(f"the loss of step {index} is infinite (trainer.crash_on_inf: false trains on)")

    # ------------------------------------------------------------------------------------------------- boundaries

    def _known(self, step: int) -> Known:
        """What this process knows, for the boundary at ``step``: see ``requests``."""
        busy, failed = self._saver.busy, self._saver.failed
        due = self._leads and self._saver.due(step, time.monotonic())
        epoch, unreadable = self._fence_epoch(), bool(self._unreadable)
        return Known(epoch=epoch, due=due, busy=busy, failed=0 if busy else failed, unreadable=unreadable)

    def _fence_epoch(self) -> int:
        """Of the fence on this host: a stat a step, and a read only where it changed, or could not be read."""
        path, why = self._attempt.paths.fence, ""
        try:
            status = os.stat(path)
            if (status.st_mtime_ns, status.st_ino) != self._fence_seen:
                self._fence_seen = None
                fence = read_fence(self._attempt.paths)
                self._fence_seen = (status.st_mtime_ns, status.st_ino)
                self._epoch = fence.epoch if fence is not None else 0
        except FileNotFoundError:
            # It was there when the attempt began, unless the caller has given the run none.
            why = f"{path} is not there any more; nothing is committed until it is" if self._epoch else ""
        except (FenceUnreadable, OSError) as error:
            why = str(error)
        if why != self._unreadable:
            self._tell_unreadable(why)
        return self._epoch

    def _tell_unreadable(self, why: str) -> None:
        """In the log and the status, once; the status is free again once the fence can be read."""
        before, self._unreadable = self._unreadable, why
        if why:
            log.error("%s", why)
            self._status.update(message=why)
        else:
            log.info("the fence can be read again: epoch %d", self._epoch)
            if self._status.value.message == before:
                self._status.update(message="")

    def _check_fence(self, epoch: int) -> None:
        """A run that was handed to someone else is not trained on. ``epoch``: the highest that any process sees."""
        if epoch <= self._attempt.epoch:
            return
        whom = f"on (epoch {epoch})"
        fence = None
        with contextlib.suppress(FenceUnreadable):
            fence = read_fence(self._attempt.paths)
        if fence is not None and fence.epoch == epoch:  # it may be another host's that says so
            whom = f"to {fence.owner} (epoch {epoch}, sealed at step {fence.sealed_step})"
        raise FencedError(f"the run was handed {whom}: this attempt ends at step {self.step}")

    def _not_yet(self, wanted: Wanted) -> Wanted:
        """What is wanted, but an order to stop at a step that is still to come, which is put off until then. A newer
        order takes its place."""
        order = wanted.order
        if order is not None:
            self._later = None
            if order.action == records.STOP and order.step is not None and order.step > self.step:
                log.info("order %d: stops at step %d", order.sequence, order.step)
                self._later = wanted
                return dataclasses.replace(wanted, stop=False, order=None)
        later = self._later
        if later is not None and later.order is not None and self.step >= (later.order.step or 0):
            self._later = None
            return dataclasses.replace(wanted, stop=True, order=later.order)
        return wanted

    def _answer(self, wanted: Wanted) -> None:
        """Save where asked to; say what cannot be done."""
        if wanted.save:
            order = wanted.order if wanted.order is not None and wanted.order.action == records.SAVE else None
            self._try_save("requested", then=None if order is None else lambda: self._acknowledge(order))
        if wanted.order is not None and wanted.order.action not in (records.SAVE, records.STOP):
            log.warning(
                "order %d (%s) is not understood by a run that trains", wanted.order.sequence, wanted.order.action
            )

    def _stop(self, wanted: Wanted) -> bool:
        """Save, hand the run over where the order says so, and report whether the run is to end.

        A save that fails ends the run where a signal asked for it, because whoever sent it will not wait. An order can
        be given again: training goes on, and the status says why.
        """
        order = wanted.order if wanted.order is not None and wanted.order.action == records.STOP else None
        self._status.update(state=records.STOPPING, step=self.step)
        if order is None:
            self._save("stop", last=True)
            return True
        if not self._try_save("stop", last=True):
            self._status.update(state=records.TRAINING, rejected=order.sequence)
            return False
        if order.epoch > self._attempt.epoch:
            try:
                fence = seal(self._attempt.paths, epoch=order.epoch, holder=order.owner, step=self.step)
            except Fenced as error:
                raise FencedError(str(error)) from None
            except FenceUnreadable as error:
                self._status.update(state=records.TRAINING, rejected=order.sequence, message=str(error))
                return False
            log.info("sealed at step %d: epoch %d belongs to %s", self.step, fence.epoch, fence.owner)
        self._acknowledge(order, write=False)
        return True

    def _acknowledge(self, order: records.Command, write: bool = True) -> None:
        self._status.update(acknowledged=order.sequence, message="")
        if write:
            self._status.write()
        log.info("order %d (%s) carried out at step %d", order.sequence, order.action, self.step)

    def _try_save(self, reason: str, **how: Any) -> bool:
        """Save; where that fails, which the saver reports, training goes on."""
        try:
            self._save(reason, **how)
        except NotSaved:
            return False
        return True

    def _save(self, reason: str, **how: Any) -> None:
        with _refused_by_fence():
            self._saver.save(self.state, self.step, reason, **how)


@contextlib.contextmanager
def _refused_by_fence() -> Iterator[None]:
    """What the fence refuses to commit ends the attempt."""
    try:
        yield
    except Fenced as error:
        raise FencedError(str(error)) from None
