"""Check of each update: loss and state are finite."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np

from midstream_core.attempt.errors import EngineError
from midstream_core.attempt.status_file import StatusFile
from midstream_engine.computation.finiteness import describe, names_by_kind
from midstream_engine.config.trainer import TrainerConfig

log = logging.getLogger(__name__)


class FiniteCheck:
    """Check that reports the first update whose state is not finite.

    The update's results suffice, because the next update may already have the memory of the state. ``reason`` names the
    arrays and the first step, for refused saves; empty while the state is finite.
    """

    def __init__(self, trainer: TrainerConfig, status: StatusFile, names: Sequence[str]) -> None:
        """``names``: of the arrays of floats in the state."""
        self.reason = ""
        self._crash_on_nan, self._crash_on_inf = trainer.crash_on_nan, trainer.crash_on_inf
        self._status, self._names = status, names

    def check(self, kinds: np.ndarray, loss: float, index: int) -> None:
        """Check update ``index``.

        Args:
            kinds: Of the arrays after the update: see `number_kinds`.
            loss: Of the batch, before the update.
            index: Number of the update, from 0.

        Raises:
            EngineError: ``trainer.crash_on_nan`` or ``trainer.crash_on_inf`` ends the run.
        """
        if math.isnan(loss) and self._crash_on_nan:
            raise EngineError(f"the loss of step {index} is NaN (hint: trainer.crash_on_nan: false ignores that)")
        if math.isinf(loss) and self._crash_on_inf:
            raise EngineError(f"the loss of step {index} is infinite (hint: trainer.crash_on_inf: false ignores that)")
        if not kinds.any():
            self.reason = ""
        elif not self.reason:
            self._report(kinds, index)

    def _report(self, kinds: np.ndarray, index: int) -> None:
        names = names_by_kind(self._names, kinds)
        self.reason = f"{describe(names)}, since step {index}"
        for kind, crashes, name in (
            ("NaN", self._crash_on_nan, "crash_on_nan"),
            ("infinity", self._crash_on_inf, "crash_on_inf"),
        ):
            if names[kind] and crashes:
                raise EngineError(
                    f"the state after step {index} is not finite: {describe(names)} "
                    f"(hint: trainer.{name}: false goes on, but saves nothing)"
                )
        line = (
            f"the state after step {index} is not finite: {describe(names)}; nothing is saved while it is so "
            "(hint: stop the run and start it again: it continues from its newest checkpoint)"
        )
        log.error(line)
        self._status.update(message=line)
        self._status.try_write()
