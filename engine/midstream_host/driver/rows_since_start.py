"""Steps of all rows that a trainer wrote since its start.

Sources that repeat their history are distinguished by what existed before the start: their readers pass over it, and a
row with an earlier time of its own is history too. A step says nothing of that.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from midstream_host.driver.metrics.rows import COUNTED, LOSS


class RowsSinceStart:
    """Record of where a trainer began, by its rows.

    Args:
        first: Step of the checkpoint that it was started from; 0 for a new run.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self.started: Optional[float] = None  # seconds; None: everything in the source is of this trainer
        self.rows = 0  # with a loss
        self.first_row: Optional[int] = None
        self.lowest: Optional[int] = None  # of those that were done since the start
        self.below = 0  # rows of steps below the checkpoint's
        self.counted = ""  # field of the source that counts rows, and to which the checkpoint's step is added
        self._added: Dict[int, int] = {}  # by part: what is added to its steps

    def step_of(self, part: int, row: Mapping[str, Any]) -> int:
        """Return the step of a row, and note what it shows.

        A counter of the process that begins below the checkpoint's step has that step added.
        """
        step: int = row["global_step"]
        counter = row.get(COUNTED)
        if counter and self._first:
            if part not in self._added:
                self._added[part] = self._first if step < self._first else 0
            step += self._added[part]
            if self._added[part]:
                self.counted = str(counter)
        if LOSS in row:
            self._note(step, row.get("time"))
        return step

    def _note(self, step: int, time: object) -> None:
        if self.started is not None and isinstance(time, (int, float)) and 0 < time < self.started:
            return  # written again, from before the start
        if not self.rows:
            self.first_row = step
        self.rows += 1
        self.lowest = step if self.lowest is None else min(self.lowest, step)
        self.below += step < self._first
