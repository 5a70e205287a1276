"""``metrics.jsonl``: one line an update, the truth about curves."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

from midstream_engine import records

log = logging.getLogger(__name__)


class MetricsFile:
    """Appends rows. Each row is one write, so a reader never sees more than one torn line, and that the last.

    A full disk does not stop training: rows wait in memory until there is room. No checkpoint is begun meanwhile (see
    ``settle``), so a process that ends then loses no row of a step that is not done again.
    """

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._waiting: deque[bytes] = deque()

    def write(self, row: Mapping[str, Any]) -> None:
        """Floats are written so that they read back exactly; one that is not finite becomes null."""
        spelled = {key: _finite(value) for key, value in row.items()}
        self._waiting.append(json.dumps(spelled, allow_nan=False).encode() + b"\n")
        try:
            self.settle()
        except OSError as error:
            if len(self._waiting) == 1:
                log.error("rows of metrics wait in memory, and nothing is saved, until they can be written: %s", error)

    def settle(self) -> None:
        """Every row is in the file when this returns. OSError where there is no room; it ends with a whole row then."""
        while self._waiting:
            records.append(self._descriptor, self._waiting[0])
            self._waiting.popleft()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """OSError where rows are still waiting."""
        try:
            self.settle()
        finally:
            os.close(self._descriptor)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
