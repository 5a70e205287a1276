"""A simulated engine before it owns the run: a standby that waits for its state, or a replica that recomputes it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from midstream_core import records
from midstream_core.attempt import replay_file, save_fence
from midstream_core.attempt.errors import FencedError
from midstream_core.attempt.standby_lease import Lease
from midstream_engine.tracking.metrics_file import MetricsFile
from simulation.checkpoints import manifest_or_none
from simulation.engine_process import STEP, EngineProcess

REPLAYED_STEP = STEP / 4  # seconds of an update of a replica, which has to catch up


class Standby(EngineProcess):
    """A process that waits for a command to restore a state, or replays batches until it is promoted."""

    def _stand_by(self, command: records.Command) -> records.Command | None:
        """Rehearse, then wait for a command to restore. None: stopped, or the lease has expired."""
        self.status.update(state=records.COMPILING)
        time.sleep(5 * STEP)
        manifest = self._manifest(command.checkpoint or "")
        self.status.update(step=manifest.step, rehearsed_seconds=STEP, compiled_seconds=5 * STEP)
        self._answered = max(self._answered, command.sequence)
        self.status.update(state=records.WAITING, message=f"waits for its state, ownership {self.attempt.epoch}")
        lease = Lease(self.files.lease)
        while not lease.over():
            if self._signalled:
                return None
            wanted = self._next_command()
            if wanted is not None and wanted.action == records.STOP:
                self.status.update(acknowledged=wanted.sequence, message="")
                return None
            if wanted is not None:
                refusal = self._unfit(wanted)
                if not refusal:
                    self.status.update(acknowledged=wanted.sequence, message="")
                    return wanted
                self.status.update(rejected=wanted.sequence, message=refusal)
                self.status.try_write()
            fence = save_fence.read_fence(self.paths)
            if fence is not None and fence.epoch > self.attempt.epoch:
                raise FencedError(f"the run has passed to {fence.owner} (ownership {fence.epoch})")
            time.sleep(0.5)
        return None

    def _unfit(self, command: records.Command) -> str:
        if command.action != records.RESTORE:
            return f"{command.action}: a standby accepts restore and stop only"
        if command.epoch != self.attempt.epoch or not command.checkpoint:
            return f"the command is of ownership {command.epoch}"
        manifest = manifest_or_none(self.paths.checkpoint(command.checkpoint))
        if manifest is None or manifest.root_digest != command.root_digest:
            return f"{command.checkpoint} is not here, or has another root digest"
        fence = save_fence.read_fence(self.paths)
        if fence is None or (fence.epoch, fence.owner) != (self.attempt.epoch, self.attempt.target):
            return f"the fence does not name {self.attempt.target} as owner of ownership {self.attempt.epoch}"
        return ""

    def _replay(self, command: records.Command) -> tuple[records.Command | None, list[dict[str, Any]] | None]:
        """Train on from a checkpoint as a replica, until a command promotes it, restores another state, or stops it.

        The rows are those from the command's step on, where it was promoted.
        """
        self.status.update(state=records.COMPILING)
        time.sleep(5 * STEP)
        self.status.update(rehearsed_seconds=REPLAYED_STEP, compiled_seconds=5 * STEP, state=records.RESTORING)
        name, _ = self._restore(command)
        self._replayed_from = self._manifest(name)
        self._answered = max(self._answered, command.sequence)
        self.status.update(state=records.REPLAYING, step=self._step, message="replays as a replica")
        rows: list[dict[str, Any]] = []
        metrics, lease, promotion = MetricsFile(replay_file.create(self.files)), Lease(self.files.lease), None
        try:
            while not self._signalled and not lease.over():
                wanted = self._next_command()
                if wanted is not None and wanted.action == records.STOP:
                    self.status.update(acknowledged=wanted.sequence, message="")
                    return None, None
                if wanted is not None:
                    refusal = self._unfit_for_replica(wanted)
                    answer = (
                        {"rejected": wanted.sequence, "message": refusal}
                        if refusal
                        else {"acknowledged": wanted.sequence}
                    )
                    self.status.update(**answer)
                    self.status.try_write()
                    if not refusal and wanted.action == records.RESTORE:
                        return wanted, None
                    promotion = wanted if not refusal and wanted.action == records.PROMOTE else promotion
                if promotion is not None and self._step >= (promotion.step or 0):
                    self.status.update(message="")
                    return promotion, [row for row in rows if row["global_step"] >= (promotion.step or 0)]
                fence = save_fence.read_fence(self.paths)
                if fence is not None and fence.epoch > self.attempt.epoch:
                    raise FencedError(f"the run has passed to {fence.owner} (ownership {fence.epoch})")
                time.sleep(REPLAYED_STEP)
                rows.append(self._row(REPLAYED_STEP))
                metrics.write(rows[-1])
                self._step += 1
                self.status.update(step=self._step)
        finally:
            metrics.close()
        return None, None

    def _unfit_for_replica(self, command: records.Command) -> str:
        if command.action == records.RESTORE:
            return self._unfit(command)
        if command.action not in (records.STANDBY, records.PROMOTE):
            return f"{command.action}: a replica accepts standby, promote, restore and stop only"
        if command.epoch != self.attempt.epoch:
            replayed = self.attempt.epoch
            return f"the command is of ownership {command.epoch}, and this attempt replays for ownership {replayed}"
        if command.step is None or (command.action == records.STANDBY and command.step < self._step):
            return f"{command.action} at step {command.step}: the replica is at step {self._step} already"
        fence = save_fence.read_fence(self.paths)
        owned = fence is not None and (fence.epoch, fence.owner) == (self.attempt.epoch, self.attempt.target)
        return "" if command.action == records.STANDBY or owned else "the fence has another owner"

    def _measure_drift(self, command: records.Command) -> None:
        """Compare with the sealed checkpoint, once that has been copied."""
        name, step = command.checkpoint or "", command.step or 0
        path = os.path.join(self.paths.checkpoint(name), records.MANIFEST)
        while not os.path.exists(path):
            time.sleep(STEP)
        distance = 0.0 if self._manifest(name).step == step else 1.0
        drift = records.ParameterDrift(
            step, name, self._manifest(name).root_digest, distance, distance, "model.weight", 8
        )  # fmt: skip
        with contextlib.suppress(OSError):  # the engine logs it
            drift.write(self.files.parameter_drift)
