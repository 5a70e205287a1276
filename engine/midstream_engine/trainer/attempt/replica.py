"""A shadow: it trains on from an earlier checkpoint while the run itself trains elsewhere, and may become the run.

Until it is promoted nothing that it does counts: it writes no checkpoint, tells no tracker, and its lines go to a file
of their own. The batches are those of the run, so whoever compares the two can see that they agree, step by step.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

from midstream_engine import records
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.data.order.prefetch import Prefetch
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import Recorder
from midstream_engine.trainer.attempt.attempt_record import Attempt
from midstream_engine.trainer.attempt.parameter_drift import keep
from midstream_engine.trainer.attempt.setup import Setup
from midstream_engine.trainer.attempt.standby import POLL, check_not_passed, unfit, unowned
from midstream_engine.trainer.attempt.standby_lease import Lease
from midstream_engine.trainer.attempt.status_file import StatusFile
from midstream_engine.trainer.loop.requests import Requests, Wanted
from midstream_engine.trainer.loop.train_state import TrainState
from midstream_engine.trainer.loop.training_loop import Loop
from midstream_engine.trainer.runtime.programs import Programs

log = logging.getLogger(__name__)
FENCE_EVERY = 2.0  # seconds between two looks at the fence


class _Unsaved:
    """In the place of a saver: a shadow saves nothing."""

    busy, failed = False, 0

    def due(self, step: int, now: float) -> bool:
        return False


@dataclass(frozen=True)
class Outcome:
    """How a replay ended: with the order that ended it (None: it is to end), and what it held then."""

    order: records.Command | None
    state: TrainState | None = None
    step: int = 0
    rows: tuple[dict[str, Any], ...] = ()  # from the order's step on: they count once it is promoted
    kept: list[HostArray] | None = None  # the parameters of the order's step, where they were kept


class Replay(Loop):
    """Trains from ``step`` as a shadow until it is promoted, told to restore another state, or to stop."""

    def __init__(
        self,
        setup: Setup,
        programs: Programs,
        requests: Requests,
        attempt: Attempt,
        status: StatusFile,
        state: TrainState,
        step: int,
    ):
        metrics = Recorder(MetricsFile(attempt.files.replay))
        unsaved: Any = _Unsaved()
        super().__init__(setup, programs, unsaved, requests, attempt, status, metrics, state, step)
        self._recorder = metrics
        self._kept: tuple[int, list[HostArray]] | None = None
        self._keep_at: int | None = None
        self._promotion: records.Command | None = None
        self._looked = 0.0

    def replay(self) -> Outcome:
        """Raises FencedError where the run is handed past this attempt's epoch, EngineError as training does."""
        source = Prefetch(self._prepare, self.step)
        lease = Lease(self._attempt)
        self._status.update(state=records.REPLAYING, step=self.step, message="replays as a shadow")
        try:
            while True:
                wanted = self._requests.look()
                if wanted.stop:
                    self._status.update(
                        acknowledged=wanted.order.sequence if wanted.order else self._status.value.acknowledged
                    )
                    return Outcome(None)
                told = self._take(wanted)
                if told is not None:
                    return told
                if self._keep_at == self.step:
                    self._kept, self._keep_at = (self.step, keep(self.state)), None
                promoted = self._promoted()
                if promoted is not None:
                    return promoted
                if self._leads and lease.over():
                    self._status.update(message=f"nobody renewed its lease for {lease.seconds:.0f} s")
                    return Outcome(None)
                if time.monotonic() - self._looked > FENCE_EVERY:
                    self._looked = time.monotonic()
                    check_not_passed(self._attempt)
                if self.step < self._trainer.num_train_steps:
                    self._update(source)
                else:
                    time.sleep(POLL)
        finally:
            source.close()
            self._recorder.close()

    def _take(self, wanted: Wanted) -> Outcome | None:
        """Carry an order out, or refuse it."""
        order = wanted.order
        if order is None:
            return None
        refusal = self._unfit(order)
        if refusal:
            log.error("order %d (%s) refused: %s", order.sequence, order.action, refusal)
            self._status.update(rejected=order.sequence, message=refusal)
            self._status.write()
            return None
        if order.action == records.STANDBY:
            self._keep_at = order.step
        elif order.action == records.PROMOTE:
            self._promotion = order
        self._status.update(acknowledged=order.sequence)
        self._status.write()
        return Outcome(order) if order.action == records.RESTORE else None

    def _unfit(self, order: records.Command) -> str:
        """Why the order cannot be carried out; empty where it can."""
        if order.action == records.RESTORE:
            return unfit(self._attempt, order)
        if order.action not in (records.STANDBY, records.PROMOTE):
            return f"{order.action}: a shadow can be told to hold, to be the run, to restore or to stop"
        if order.epoch != self._attempt.epoch:
            return f"the order is of epoch {order.epoch}, and this attempt replays for epoch {self._attempt.epoch}"
        if order.step is None or (order.action == records.STANDBY and order.step < self.step):
            return f"{order.action} at step {order.step}: the shadow is at step {self.step} already"
        return unowned(self._attempt) if order.action == records.PROMOTE else ""

    def _promoted(self) -> Outcome | None:
        """The end of the replay, once the state from which it is the run has been reached."""
        order = self._promotion
        if order is None or order.step is None or self.step < order.step:
            return None
        with open(self._attempt.files.replay, encoding="utf-8") as file:
            rows = [row for row in records.parse_metrics(file) if row["global_step"] >= order.step]
        kept = self._kept[1] if self._kept is not None and self._kept[0] == order.step else None
        self._status.update(message="")
        return Outcome(order, self.state, self.step, tuple(rows), kept)
