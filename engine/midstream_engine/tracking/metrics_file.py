"""``metrics.jsonl``: one row per update."""

from __future__ import annotations

import json
import logging
import os
from collections import deque

from midstream_core import records
from midstream_core.json_types import JsonObject

log = logging.getLogger(__name__)


class MetricsFile:
    """Appends rows. Each row is one write, so only the last line can be partial.

    A partial line that an earlier writer has left is removed when the file is opened.

    A full disk does not stop training: rows stay in memory until there is room. No checkpoint is started before they
    are written (see `settle`), so a process that ends before loses rows only of steps that are trained again.
    """

    def __init__(self, path: str, start: int = 0) -> None:
        """Open the file for a start of that number; 0: rows have none."""
        self._descriptor = records.open_lines(path)
        self._start = {records.START_NUMBER: start} if start else {}
        self._waiting: deque[bytes] = deque()

    def write(self, row: JsonObject) -> None:
        """Append a row. Floats are written exactly; one that is not finite becomes null."""
        self._waiting.append(json.dumps(records.finite_json({**row, **self._start}), allow_nan=False).encode() + b"\n")
        try:
            self.settle()
        except OSError as error:
            if len(self._waiting) == 1:
                log.error(
                    "metrics cannot be written; until they can, rows stay in memory and nothing is saved: %s", error
                )

    def settle(self) -> None:
        """Write all rows.

        Raises OSError where there is no room; the file then ends with a complete row.
        """
        while self._waiting:
            records.append_line(self._descriptor, self._waiting[0])
            self._waiting.popleft()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Write all rows and close. Raises OSError where rows cannot be written."""
        try:
            self.settle()
        finally:
            os.close(self._descriptor)
