"""Rows of ``metrics.jsonl`` from what a trainer writes.

Each step is in it once, in order, from the attempt's first step on.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections import deque
from typing import Any, Deque, Dict, List, Mapping, Optional

from midstream_engine import records
from midstream_engine.foreign.batch_tap import BatchTap
from midstream_engine.foreign.metrics.metrics_reader import MetricsReader
from midstream_engine.foreign.metrics.rows import RowsOfPart

PASS_TIMEOUT = 300.0  # seconds for the metrics of earlier attempts: about 1 GB


class MetricsTail:
    """Writer of a trainer's rows to ``metrics.jsonl`` or ``replay.jsonl``.

    It appends to the file of an attempt. On a full disk rows stay in memory until there is room: the trainer trains on.
    """

    def __init__(self, reader: MetricsReader, path: str, *, first: int, tap: Optional[BatchTap] = None) -> None:
        """Open the file.

        Args:
            reader: The source.
            path: The file of rows.
            first: The first step of this attempt: rows of earlier steps belong to earlier attempts.
            tap: Digests of batches.
        """
        self._reader, self._tap = reader, tap
        self.step = first  # updates that have a row
        self.rows = 0
        self.problem = ""  # why the source cannot be read, in one line
        self._file = records.open_lines(path)
        self._waiting: Deque[bytes] = deque()  # rows that are not written yet
        self._time: Optional[float] = None  # of the last row
        self._evaluated = first
        self._apart: Dict[int, Dict[str, Any]] = {}  # values of steps whose loss has not come yet

    def poll(self) -> int:
        """Read what is new; return the number of new rows."""
        before = self.rows
        parts = self._read()
        while parts:
            if self._tap is not None:  # after the rows: every batch of a step is recorded before its loss
                self._tap.poll()
            for part in parts:
                self.problem = "{}: {}".format(part.source, part.problem)[:300] if part.problem else ""
                for found in part.rows:
                    self._write(found)
            read = any(part.rows for part in parts)
            parts = self._read() if read else []
        self._settle()
        return self.rows - before

    def pass_over(self) -> None:
        """Leave out what the source has until now: earlier attempts wrote it."""
        deadline, before = time.monotonic() + PASS_TIMEOUT, None
        while before != self._reader.state and time.monotonic() < deadline:
            before = copy.deepcopy(self._reader.state)
            self._read()

    def _read(self) -> List[RowsOfPart]:
        """Return the source's new rows.

        None where it cannot be read now: the trainer trains on.
        """
        try:
            return self._reader.poll()
        except (OSError, ValueError) as error:
            self.problem = "metrics cannot be read: {}".format(error)[:300]
            return []

    def _write(self, found: Mapping[str, Any]) -> None:
        row = self._row(found["global_step"], found)
        if row:
            self._waiting.append(json.dumps(row, allow_nan=False).encode() + b"\n")
            self.rows += 1

    def _settle(self, *, sync: bool = False) -> None:
        try:
            while self._waiting:
                records.append_line(self._file, self._waiting[0])
                self._waiting.popleft()
            if sync:
                os.fsync(self._file)
        except OSError as error:
            self.problem = "rows of metrics cannot be written: {}".format(error)[:300]

    def sync(self) -> None:
        """Write all rows, and wait until they are on the disk.

        An error is the `problem`.
        """
        self._settle(sync=True)

    def close(self) -> None:
        self._settle()
        os.close(self._file)

    def _row(self, step: int, found: Mapping[str, Any]) -> Dict[str, Any]:
        # None is a number that is not finite: a diverged run has a row of each step, too.
        values = {name: value for name, value in found.items() if name not in ("global_step", "time")}
        loss = "train/loss" in values
        if not loss and "eval/loss" not in values and step >= self.step:
            self._apart.setdefault(step, {}).update(values)  # a learning rate that is logged before the loss
            return {}
        if loss:
            values = {**self._apart.get(step, {}), **values}
            self._apart = {other: kept for other, kept in self._apart.items() if other > step}
        if not values or step < (self.step if loss else self._evaluated):
            return {}  # of an earlier attempt, or a part that repeats it
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
        self.step, self._time = step + 1, moment
        return row


def read_rows(path: str) -> List[Dict[str, Any]]:
    """Return the complete rows of a file; none where it is absent."""
    try:
        with records.open_regular(path) as file:
            return records.parse_metrics(file.read().decode(errors="replace").splitlines())
    except FileNotFoundError:
        return []
