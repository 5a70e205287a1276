"""Rows of ``metrics.jsonl`` from what a trainer writes: each step once, in order, from the attempt's first step on."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol

from midstream_engine import records
from midstream_engine.foreign.batch_tap import BatchTap

# Names of a trainer's values, and those of the columns.
COLUMNS = {
    "loss": "train/loss",
    "learning_rate": "optim/learning_rate",
    "grad_norm": "grad/norm/total",
    "eval_loss": "eval/loss",
    "tokens_per_second": "throughput/tokens_per_second",
}


class Reader(Protocol):
    """A source of metrics: new rows since the last call, each with ``step`` and what the trainer names beside it."""

    def read(self) -> Iterable[Mapping[str, Any]]: ...


class MetricsTail:
    """Appends a trainer's rows to ``metrics.jsonl`` (or ``replay.jsonl``) of an attempt."""

    def __init__(self, reader: Reader, path: str, *, offset: int, first: int, tap: Optional[BatchTap] = None) -> None:
        """Open the file.

        Args:
            reader: The source.
            path: The file of rows.
            offset: The number that the first update of a run has in the source.
            first: The first step of this attempt: rows of earlier steps belong to earlier attempts.
            tap: Digests of batches.
        """
        self._reader, self._offset, self._tap = reader, offset, tap
        self.step = first  # updates that have a row
        self.rows = 0
        self.newest: Dict[str, Any] = {}
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._time: Optional[float] = None  # of the last row
        self._evaluated = first

    def poll(self) -> int:
        """Read what is new; return the number of rows that were written."""
        before = self.rows
        if self._tap is not None:
            self._tap.poll()
        for found in self._reader.read():
            step = found.get("step")
            if type(step) is not int:
                continue
            row = self._row(step - self._offset, found)
            if row:
                records.append_line(self._file, json.dumps(row, allow_nan=False).encode() + b"\n")
                self.rows += 1
        return self.rows - before

    def sync(self) -> None:
        """Wait until the rows are on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def _row(self, step: int, found: Mapping[str, Any]) -> Dict[str, Any]:
        values: Dict[str, Any] = {}
        for name, column in COLUMNS.items():
            value = found.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                values[column] = value if math.isfinite(value) else None
        values = {name: value for name, value in values.items() if value is not None}
        loss = "train/loss" in values
        if step < 0 or not values or step < (self.step if loss else self._evaluated):
            return {}
        now = found.get("time")
        moment = float(now) if isinstance(now, (int, float)) and now > 0 else time.time()
        row: Dict[str, Any] = {"global_step": step, **values, "time": moment}
        if not loss:
            self._evaluated = step + 1
            return row
        done = step + 1 - self.step
        if self._time is not None and moment > self._time and done > 0:
            row["throughput/duration"] = (moment - self._time) / done
        digest = self._tap.digest(step) if self._tap is not None else ""
        if digest:
            row["batch_digest"] = digest
        self.step, self._time, self.newest = step + 1, moment, row
        return row


def read_rows(path: str) -> List[Dict[str, Any]]:
    """Return the complete rows of a file; none where it is absent."""
    try:
        with records.open_regular(path) as file:
            return records.parse_metrics(file.read().decode(errors="replace").splitlines())
    except FileNotFoundError:
        return []
