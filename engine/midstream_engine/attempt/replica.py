"""Replica that trains on from an earlier checkpoint while the source still trains.

Until a command promotes it to the run, the replica writes no checkpoint, has no trackers, and writes its metrics to
``replay.jsonl``. Source and replica consume the same batches, so the two can be compared step by step.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Any

from midstream_core import records
from midstream_core.attempt import replay_file
from midstream_core.attempt.errors import EngineError
from midstream_core.attempt.standby_lease import Lease
from midstream_core.attempt.status_file import StatusFile
from midstream_core.json_types import JsonValue, int_of
from midstream_engine.attempt.parameter_drift import keep
from midstream_engine.attempt.standby import POLL_INTERVAL, agreed, check_not_passed, unfit, unowned
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.computation.programs import CompiledRun
from midstream_engine.computation.train_state import TrainState
from midstream_engine.data.prefetch import Prefetch
from midstream_engine.loop.requests import Known, Requests, Wanted
from midstream_engine.loop.training_loop import Loop
from midstream_engine.runtime.attempt_record import AttemptRecord
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import MetricsRecorder, close_metrics

log = logging.getLogger(__name__)
FENCE_INTERVAL = 2.0  # seconds between two reads of the fence


class _Unsaved:
    """Saver of a replica, which saves nothing."""

    busy, failed = False, 0

    def due(self, _step: int, _now: float) -> bool:
        return False

    def save(self, *_: object, **__: object) -> None:
        """Do nothing: its steps are the source's, too."""


@dataclass(frozen=True)
class ReplayResult:
    """Result of a replay: the command that ended it, and its state.

    Without a command (None) the process is to exit.
    """

    command: records.Command | None
    state: TrainState | None = None
    step: int = 0
    rows: tuple[dict[str, Any], ...] = ()  # from the command's step on: rows of the run after the promotion
    kept: list[HostArray] | None = None  # the parameters of the command's step, where they were kept


class Replica(Loop):
    """Training from ``step`` as a replica.

    A command ends the replay: it promotes the replica, restores another state, or stops it.
    """

    def __init__(
        self,
        compiled: CompiledRun,
        requests: Requests,
        attempt: AttemptRecord,
        status: StatusFile,
        state: TrainState,
        step: int,
    ) -> None:
        # One process writes the rows: several may share the directory, and only process 0 has the batches' digests.
        self._replayed = replay_file.create(attempt.files) if attempt.processes.leads else os.devnull
        metrics = MetricsRecorder(MetricsFile(self._replayed))
        unsaved: Any = _Unsaved()
        super().__init__(compiled, unsaved, requests, attempt, status, metrics, state, step)
        self._recorder, self._lease = metrics, Lease(attempt.files.lease)
        self._kept: tuple[int, list[HostArray]] | None = None
        self._keep_at: int | None = None
        self._promotion: records.Command | None = None
        self._fence_read = 0.0

    def replay(self) -> ReplayResult:
        """Train until a command ends the replay.

        Raises FencedError where the run has passed this attempt's epoch, EngineError as training does.
        """
        source = Prefetch(self._prepare, self.step)
        self._status.update(state=records.REPLAYING, step=self.step, message="replays as a replica")
        try:
            while True:
                self._wait_for_boundary(source)
                requested = self._requests.look(self._known(self._boundary))
                if self._acts(requested) or not source.ready:
                    self._settle()
                if requested.stop:
                    self._status.update(
                        acknowledged=requested.command.sequence
                        if requested.command
                        else self._status.value.acknowledged
                    )
                    return ReplayResult(None)
                outcome = self._take(requested)
                if outcome is not None:
                    return outcome
                if self._keep_at == self.step:
                    self._kept, self._keep_at = (self.step, keep(self.state)), None
                promoted = self._promoted()
                if promoted is not None:
                    return promoted
                if requested.facts.due:
                    self._status.update(message=f"the replica's lease was not renewed for {self._lease.seconds:.0f} s")
                    return ReplayResult(None)
                if time.monotonic() - self._fence_read > FENCE_INTERVAL:
                    self._fence_read = time.monotonic()
                    check_not_passed(self._attempt)
                if self._boundary < self._trainer.num_train_steps:
                    self._update(source)
                else:
                    time.sleep(POLL_INTERVAL)
        finally:
            source.close()
            close_metrics(self._recorder)

    def _known(self, step: int) -> Known:  # noqa: ARG002
        """Return what the consensus needs.

        Process 0 has the lease, and all leave at the same boundary.
        """
        return Known(due=self._leads and self._lease.over())

    def _acts(self, requested: Wanted) -> bool:
        promotion = self._promotion.step if self._promotion is not None else None
        reached = promotion is not None and self._boundary >= promotion
        return reached or self._keep_at == self._boundary or super()._acts(requested)

    def _take(self, requested: Wanted) -> ReplayResult | None:
        """Carry a command out, or reject it."""
        command = requested.command
        if command is None:
            return None
        refusal = agreed(self._attempt, command.sequence, self._unfit(command))
        if refusal:
            log.error("command %d (%s) rejected: %s", command.sequence, command.action, refusal)
            self._status.update(rejected=command.sequence, message=refusal)
            self._status.try_write()
            return None
        if command.action == records.STANDBY:
            self._keep_at = command.step
        elif command.action == records.PROMOTE:
            self._promotion = command
        self._status.update(acknowledged=command.sequence)
        self._status.try_write()
        return ReplayResult(command) if command.action == records.RESTORE else None

    def _unfit(self, command: records.Command) -> str:
        """Return why the command cannot be carried out; empty where it can."""
        if command.action == records.RESTORE:
            return unfit(self._attempt, command)
        if command.action not in (records.STANDBY, records.PROMOTE):
            return f"{command.action}: a replica accepts standby, promote, restore and stop only"
        if command.epoch != self._attempt.epoch:
            replayed = self._attempt.epoch
            return f"the command is of ownership {command.epoch}, and this attempt replays for ownership {replayed}"
        if command.step is None or (command.action == records.STANDBY and command.step < self.step):
            return f"{command.action} at step {command.step}: the replica is at step {self.step} already"
        if command.action == records.PROMOTE and self._finite.reason:
            return f"the replica's state is not finite: {self._finite.reason}"
        return unowned(self._attempt) if command.action == records.PROMOTE else ""

    def _promoted(self) -> ReplayResult | None:
        """Return the outcome once the step of the promotion is reached; None before.

        Raises EngineError where an update after the command has made the state not finite, OSError where rows wait for
        room on a full disk: the migration rolls back.
        """
        command = self._promotion
        if command is None or command.step is None or self.step < command.step:
            return None
        if self._finite.reason:
            raise EngineError(f"the replica is not promoted: its state is not finite: {self._finite.reason}")
        self._recorder.settle()
        rows: dict[int, dict[str, JsonValue]] = {}
        if self._leads:
            with open(self._replayed, encoding="utf-8") as file:
                rows = {int_of(row["global_step"]): row for row in records.parse_metrics(file)}
        since = tuple(row for step, row in sorted(rows.items()) if command.step <= step < self.step)
        kept = self._kept[1] if self._kept is not None and self._kept[0] == command.step else None
        self._status.update(message="")
        return ReplayResult(command, self.state, self.step, since, kept)
