"""Progress of a run, and its pace, by its rows and its status."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import LoggedRow

PACE_ROWS = 200  # newest rows, of which the pace is the median
MIN_COMPILE_SECONDS = 1.0  # by which a first step is longer that includes the compilation


@dataclass(frozen=True)
class Pace:
    """Seconds of a run's steps; 0: unknown."""

    step: float = 0.0  # median
    first_step: float = 0.0  # of the newest attempt, with the compilation

    def compile_seconds(self, compiled: float = 0.0) -> float | None:
        """Return the seconds that the newest attempt took to compile.

        None where nothing shows them.

        ``compiled``: seconds that its status reports, 0: none; few if the programs were in the cache of that host.
        Without them, the first step is longer by the compilation.
        """
        if compiled >= MIN_COMPILE_SECONDS:
            return compiled
        longer = self.first_step - self.step
        return longer if longer >= MIN_COMPILE_SECONDS else None


def pace_of(curve: Sequence[LoggedRow]) -> Pace:
    """Return the pace that a run's metric rows show."""
    if not curve:
        return Pace()
    durations = [row["throughput/duration"] for row in curve[-PACE_ROWS:] if "throughput/duration" in row]
    newest = curve[-1].get("attempt")
    first = next((row.get("throughput/duration", 0.0) for row in curve if row.get("attempt") == newest), 0.0)
    return Pace(statistics.median(durations) if durations else 0.0, float(first))


def steps_done(run: RunView) -> int:
    """Return the updates that the run has had, by its status and its rows.

    An attempt that failed before it had restored anything reports step 0; the rows of the attempts before it count.
    """
    rows = int(run.curve[-1]["global_step"]) + 1 if run.curve else 0
    return max(run.step or 0, rows)


def steps_since(run: RunView, checkpoint: str) -> int:
    """Return the steps since a checkpoint, by its name; 0 without one."""
    point = records.parse_checkpoint_name(checkpoint)
    return max(0, run.status.step - point[0]) if point and run.status else 0
