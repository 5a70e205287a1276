"""``metrics.jsonl``: one line an update, the truth about curves."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any

from midstream_engine import records


class MetricsFile:
    """Appends rows. Each row is one write, so a reader never sees more than one torn line, and that the last."""

    def __init__(self, path: str):
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, row: Mapping[str, Any]) -> None:
        """Floats are written so that they read back exactly; one that is not finite becomes null. OSError where there
        is no room for the row; the file then ends with the row before."""
        spelled = {key: _finite(value) for key, value in row.items()}
        records.append(self._descriptor, json.dumps(spelled, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
