"""Rows of metrics: to metrics.jsonl always, and to trackers that may fail."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from midstream_engine.tracking.background_tracker import BackgroundTracker
from midstream_engine.tracking.metrics_file import MetricsFile

log = logging.getLogger(__name__)


class Recorder:
    """Writes each row to the file in the caller's thread, and hands it to the trackers, each in a thread of its own."""

    def __init__(self, file: MetricsFile, trackers: Sequence[BackgroundTracker] = ()):
        self._file, self._trackers = file, tuple(trackers)

    def write(self, row: Mapping[str, Any]) -> None:
        """``row`` has ``global_step``."""
        self._file.write(row)
        for tracker in self._trackers:
            tracker.log(row)

    def settle(self) -> None:
        """Every row is in the file when this returns. OSError where it cannot be."""
        self._file.settle()

    def sync(self) -> None:
        """Wait until what is in the file is on the disk. OSError where it cannot be told."""
        self._file.sync()

    def close(self) -> None:
        """Close the file and give every tracker a while to deliver what it has."""
        try:
            self._file.close()
        finally:
            for tracker in self._trackers:
                tracker.finish()
