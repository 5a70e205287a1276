"""Recorder of metrics: rows to metrics.jsonl, and to trackers, which may fail."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from midstream_core.json_types import JsonObject
from midstream_engine.tracking.background_tracker import BackgroundTracker
from midstream_engine.tracking.metrics_file import MetricsFile

log = logging.getLogger(__name__)


class MetricsRecorder:
    """Recorder of rows: the caller's thread writes the file, others the trackers."""

    def __init__(self, file: MetricsFile, trackers: Sequence[BackgroundTracker] = ()) -> None:
        self._file, self._trackers = file, tuple(trackers)

    def write(self, row: JsonObject) -> None:
        """Record a row, which has ``global_step``."""
        self._file.write(row)
        for tracker in self._trackers:
            tracker.log(row)

    def settle(self) -> None:
        """Write all rows to the file. Raises OSError."""
        self._file.settle()

    def sync(self) -> None:
        """Wait until the file is on the disk. Raises OSError."""
        self._file.sync()

    def close(self) -> None:
        """Close the file, then the trackers, each within its time limit. Raises OSError."""
        try:
            self._file.close()
        finally:
            for tracker in self._trackers:
                tracker.finish()


def close_metrics(metrics: MetricsRecorder) -> None:
    """Close the metrics; an error replaces neither the end of training nor its reason.

    Rows that cannot be written are of steps without a checkpoint, which are trained again. With several processes a
    checkpoint may have been committed without them, because the others continue a save; the log then has an error.
    """
    try:
        metrics.close()
    except OSError as error:
        log.error("the last rows of metrics are missing: %s", error)
