"""A simulated engine: the real protocol on real files, with a state of a few bytes and updates that take no computing.

Attempt, start number, fence, status, lineage, metrics, retention and seal are the engine's own code. The state after
step k is a function of k alone, so that the bytes of a checkpoint prove its step.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from midstream_core import records
from midstream_core.attempt import save_fence
from midstream_core.attempt.earlier_process import running_earlier
from midstream_core.attempt.errors import CheckpointError, FencedError
from midstream_engine.attempt.take_start import take_start
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.loop.fence_reader import FenceReader
from midstream_engine.runtime import attempt_record
from midstream_engine.tracking.metrics_file import MetricsFile
from simulation.checkpoints import state_of, write_checkpoint
from simulation.engine_process import STEP
from simulation.history import HISTORY, Commit, Start
from simulation.machines import present
from simulation.scheduler import SCHEDULER
from simulation.standby import Standby
from simulation.unseen import EngineStatus, unseen_ends

SAVE_INTERVAL = 60.0  # seconds
STEPS = 100_000


class Engine(Standby):
    """One process of an attempt."""

    def run(self) -> int:
        """Train, or wait for the state; return the exit code."""
        if refused := running_earlier(self.files.status(0), 5.0):
            print(refused)
            return 1
        self.status = EngineStatus(
            self.files.status(0), run_id=self.paths.run_id, attempt=self.attempt.number,
            epoch=self.attempt.first_epoch, num_train_steps=STEPS, processes=self._processes,
            host=os.environ.get("MIDSTREAM_HOST", ""),
        )  # fmt: skip
        self.status.update(state_bytes=len(state_of(0)) + 512, devices=[{"kind": "cpu", "platform": "cpu"}])
        command = records.Command.read_or_none(self.files.command_file)
        self._answered = max(self.status.value.acknowledged, self.status.value.rejected)
        try:
            self._peers.meet()
            return self._attempt(command)
        except (FencedError, save_fence.FenceRejectedError) as error:
            return self._fail(str(error), records.EXIT_FENCED)
        except (CheckpointError, records.RecordError, OSError, KeyError) as error:
            return self._fail(str(error), 1)

    def _fail(self, message: str, code: int) -> int:
        print(message, flush=True)
        self.status.update(state=records.FAILED, message=message)
        return code

    def _attempt(self, command: records.Command | None) -> int:
        rows: list[dict[str, Any]] | None = None  # of a promoted replica
        if command is not None and command.action == records.REPLAY:
            command, rows = self._replay(command)
            if command is None:
                self.status.update(state=records.STOPPED)
                self.status.close()
                return 0
            self.status.update(epoch=self.attempt.epoch)
        elif command is not None and command.action in records.STANDBYS:
            command = self._stand_by(command)
            if command is None:
                self.status.update(state=records.STOPPED)
                self.status.close()
                return 0
            self.status.update(epoch=self.attempt.epoch)
        self.status.update(state=records.RESTORING)
        restores = command is not None and command.action == records.RESTORE
        HISTORY.take_start(self._process, self.attempt.epoch)
        self.attempt = take_start(self.attempt, self.status, restores=restores)
        if rows is None and command is not None and command.action in records.STARTS:
            self.status.update(acknowledged=command.sequence)
        if rows is None:
            name, digest = self._restore(command)
            first = self._step
        else:
            assert command is not None
            name, digest, first = self._replayed_from.name, self._replayed_from.root_digest, command.step or 0
            self._restored, self._promotion = first, command
            self._process.start_task(lambda: self._measure_drift(command), "drift")
        entry = attempt_record.lineage_entry(
            self.attempt, devices=[{"kind": "cpu", "platform": "cpu"}], first_step=first, checkpoint=name or None,
            root_digest=digest or None, migration=command.migration if command is not None else "",
        )  # fmt: skip
        attempt_record.record_start(self.attempt, entry)
        self._train(rows or [])
        self.status.close()
        return 0

    def _train(self, rows: list[dict[str, Any]]) -> None:
        """Train until a command, a signal or the fence ends it. ``rows``: those of the replica that it was."""
        metrics = MetricsFile(self.files.metrics, self.attempt.start)
        retention = Retention(KeepPolicy(SAVE_INTERVAL, (KeepEvery(every=10**9),)), time.monotonic())
        reader = FenceReader(self.paths, self.status)
        self.status.update(state=records.TRAINING, step=self._step)
        HISTORY.training[self._process] = self.attempt.epoch
        HISTORY.starts.append(Start(self._process.machine.name, self.attempt.epoch, self.attempt.start, self._restored))
        saved_at, clock = time.monotonic(), self._process.clock
        task = SCHEDULER.current
        assert task is not None
        task.background = True
        for row in rows:
            metrics.write(row)
        try:
            if rows or self._promotion is not None:
                self._try_save(metrics)
            while True:
                epoch = reader.epoch()
                if epoch > self.attempt.epoch or reader.superseded(self.attempt.epoch, self.attempt.start):
                    reader.refuse(epoch, self._step, epoch == self.attempt.epoch)
                command = self._next_command()
                if self._signalled or (
                    command is not None and command.action == records.STOP and (command.step or 0) <= self._step
                ):
                    if self._stop(command, metrics):
                        return
                elif command is not None and command.action == records.SAVE:
                    saved = self._try_save(metrics)
                    self.status.update(**{"acknowledged" if saved else "rejected": command.sequence})
                    self.status.try_write()
                elif time.monotonic() - saved_at >= SAVE_INTERVAL:
                    saved_at = time.monotonic()
                    if self._try_save(metrics):
                        self._prune(retention)
                # Where no other task looks, all updates until the next save are one.
                ends = unseen_ends(STEP, lambda at, since=saved_at: clock.monotonic(at) - since >= SAVE_INTERVAL)
                SCHEDULER.park_until(ends[-1])
                for at in ends:
                    metrics.write(self._row(now=at))
                    self._step += 1
                self.status.update(step=self._step)
        finally:
            task.background = False
            HISTORY.training.pop(self._process, None)
            metrics.close()

    def _prune(self, retention: Retention) -> None:
        try:
            retention.prune(self.paths, own=(self.attempt.epoch, self.attempt.start))
        except (CheckpointError, records.RecordError, OSError) as error:
            print(f"old checkpoints not removed: {error}", flush=True)

    def _try_save(self, metrics: MetricsFile) -> bool:
        """Save; return whether it succeeded. The status has the reason; training continues."""
        try:
            self._save(metrics)
        except (CheckpointError, OSError) as error:
            self.status.update(state=records.TRAINING, message=f"step {self._step} not saved: {error}")
            self.status.try_write()
            return False
        return True

    def _save(self, metrics: MetricsFile) -> None:
        """Commit a checkpoint where the fence accepts it."""
        start = self.attempt.start
        name = records.checkpoint_name(self._step, self.attempt.number, start if self.paths.store else 0)
        if self.status.value.checkpoint == name:
            return
        self.status.update(state=records.SAVING)
        metrics.settle()
        time.sleep(STEP / 2)
        with records.locked(self.paths.lock):
            fence = save_fence.check(self.paths, self.attempt.epoch, self._step, start)
            if self.paths.store:
                bucket_fence.check_fence(self.paths, fence, self.attempt.epoch, self._step, start)
            write_checkpoint(self.paths, self.attempt.number, self.attempt.epoch, start, self._step, self._config)
            digest = self._manifest(name).root_digest
            if fence is None:
                HISTORY.unfenced.append(f"{self._process.machine.name} step {self._step}")
            HISTORY.commits.append(
                Commit(SCHEDULER.now, self.paths.run_id, self._process.machine.name, self.attempt.number,
                       self.attempt.epoch, self.attempt.start, self._step, self._restored, self._process.pid, digest)
            )  # fmt: skip
        self.status.update(checkpoint=name, root_digest=digest)
        self.status.update(state=records.TRAINING)
        strike, self._process.after_save = self._process.after_save, None
        if strike is not None:
            strike()
            SCHEDULER.park(0.0)

    def _stop(self, command: records.Command | None, metrics: MetricsFile) -> bool:
        self.status.update(state=records.STOPPING, step=self._step)
        if not self._try_save(metrics):
            if command is None:
                raise CheckpointError(self.status.value.message)
            self.status.update(rejected=command.sequence)
            return False
        if command is not None:
            if command.epoch > self.attempt.epoch:
                save_fence.seal(
                    self.paths, epoch=command.epoch, owner=command.owner, step=self._step, start=self.attempt.start
                )
                HISTORY.seals.append(
                    (SCHEDULER.now, self._process.machine.name, command.epoch, command.owner, self._step)
                )
            self.status.update(acknowledged=command.sequence, message="")
        else:
            self.status.update(message=f"stopped by {self._signalled} at step {self._step}, saved")
        attempt_record.record_end(self.attempt, self._step)
        self.status.update(state=records.STOPPED)
        return True


def main() -> int:
    """Run an engine as the present process."""
    process = present()
    assert process is not None
    code = Engine(process).run()
    sys.stdout.flush()
    return code


def record_exit(directory: str, code: int, rank: int = 0) -> None:
    """Write what the engine's supervisor writes after its exit."""
    files = records.AttemptPaths(directory)
    last = records.Status.read_or_none(files.status(rank))
    killed = code < 0
    records.ProcessExit(
        process=rank, code=None if killed else code, time=time.time(),
        signal=signal.Signals(-code).name if killed else "",
        state=last.state if last else "", step=last.step if last else 0, heartbeat=last.heartbeat if last else 0.0,
        message=last.message if last else "",
    ).write(files.exit(rank))  # fmt: skip
