"""Rows of ``metrics.jsonl`` from what a trainer writes.

Each step is in it once, in order, from the attempt's first step on. What the trainer wrote since its start is judged
before that: rows of steps below the checkpoint's show that it did not continue from it.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from midstream_core import records
from midstream_core.json_types import JsonObject, int_of
from midstream_host.driver.batch_tap import BatchTap
from midstream_host.driver.metrics.metrics_reader import MetricsReader
from midstream_host.driver.metrics.rows import COUNTED, LOSS, Row, RowsOfPart
from midstream_host.driver.rows_since_start import RowsSinceStart

PASS_TIMEOUT = 300.0  # seconds for the metrics of earlier attempts: about 1 GB
PROMPT = 2.0  # seconds between a row's own time and its reading, up to which a source does not lag
MAX_LOSSES = 64  # that are compared with those of rows that repeat a step
APART = ("global_step", "time", COUNTED, records.START_NUMBER)  # fields of a row that are no values


class MetricsTail:
    """Writer of a trainer's rows to ``metrics.jsonl`` or ``replay.jsonl``.

    Rows are appended to the file of an attempt. On a full disk rows stay in memory until there is room: the trainer
    trains on.
    """

    def __init__(
        self, reader: MetricsReader, path: str, *, first: int, tap: Optional[BatchTap] = None, start: int = 0
    ) -> None:
        """Open the file.

        Args:
            reader: The source.
            path: The file of rows.
            first: The first step of this attempt: rows of earlier steps belong to earlier attempts.
            tap: Digests of batches.
            start: Number of the driver's start, which the rows have; 0: none.
        """
        self._start = {records.START_NUMBER: start} if start else {}
        self._reader, self._tap = reader, tap
        self.step = first  # updates that have a row
        self.rows = 0
        self.interval = 1  # largest difference between two neighbouring rows
        self.problem = ""  # why the source cannot be read, in one line
        self.conflict = ""  # two rows of one step that cannot both be its loss, in one line
        self._losses: Dict[int, Any] = {}  # of the newest steps
        self.since_start = RowsSinceStart(first)
        self._file = records.open_lines(path)
        self._waiting: Deque[bytes] = deque()  # rows that are not written yet
        self._last: Optional[Tuple[float, bool]] = None  # time of the last row, and whether it is the row's own
        self._lag = float("inf")  # seconds between the last row's own time and its reading
        self._evaluated = first
        self._apart: Dict[int, Row] = {}  # values of steps whose loss has not come yet

    @property
    def is_prompt(self) -> bool:
        """Whether each step has a row that is read as soon as the step is done.

        The newest row is then the newest step.
        """
        return self.rows > 1 and self.interval == 1 and not self.lags

    @property
    def lags(self) -> bool:
        """Whether rows may be read long after their steps were done."""
        return self._lag > PROMPT

    @property
    def why_no_row(self) -> str:
        """Reason for which no row is recorded, in one line; empty where one is."""
        if self.rows:
            return ""
        names = sorted({name for values in self._apart.values() for name in values})
        return self.problem or (
            "its rows have no loss, only {}".format(", ".join(names))[:200] if names else "its source has no row"
        )

    def poll(self) -> int:
        """Read what is new; return the number of new rows."""
        before = self.rows
        parts = self._read()
        while parts:
            if self._tap is not None:  # after the rows: every batch of a step is recorded before its loss
                self._tap.poll()
            now, alone = time.time(), sum(LOSS in row for part in parts for row in part.rows) == 1
            for part in parts:
                self.problem = "{}: {}".format(part.source, part.problem)[:300] if part.problem else ""
                for row in part.rows:
                    self._write(part, row, now, alone=alone)
            read = any(part.rows for part in parts)
            parts = self._read() if read else []
        self._settle()
        return self.rows - before

    def pass_over(self) -> None:
        """Leave out what the source has until now: earlier attempts wrote it.

        What it has later is new, or was written before the trainer's start by its own time.
        """
        deadline, before = time.monotonic() + PASS_TIMEOUT, None
        while before != self._reader.state and time.monotonic() < deadline:
            before = copy.deepcopy(self._reader.state)
            self._read()
        self.since_start.started = time.time()

    def take_over(self, started: float) -> None:
        """Take over the source of a trainer that runs since ``started``.

        What an earlier process has written to the same files is left out: rows with an earlier time, files that did not
        change since, and rows before the last one where the steps begin again.
        """
        deadline, before = time.monotonic() + PASS_TIMEOUT, None
        parts: Dict[int, RowsOfPart] = {}
        while before != self._reader.state and time.monotonic() < deadline:
            before = copy.deepcopy(self._reader.state)
            for part in self._read():
                if part.modified is None or part.modified >= started:
                    rows = parts.setdefault(part.part, RowsOfPart(part.source, part.part, []))
                    rows.rows.extend(row for row in part.rows if not _is_older(row, started))
        now = time.time()
        for part in parts.values():
            for row in part.rows[_last_beginning(part.rows) :]:
                self._write(part, row, now, alone=False)
        self._settle()

    def _read(self) -> List[RowsOfPart]:
        """Return the source's new rows; None where it cannot be read at present."""
        try:
            return self._reader.poll()
        except (OSError, ValueError) as error:
            self.problem = "metrics cannot be read: {}".format(error)[:300]
            return []

    def _write(self, part: RowsOfPart, read_row: JsonObject, now: float, *, alone: bool) -> None:
        """Write a row that was read at ``now``; ``alone``: no other loss was read with it."""
        row = self._row(self.since_start.step_of(part.part, read_row), read_row, now, alone=alone)
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

    def _row(self, step: int, read_row: JsonObject, now: float, *, alone: bool) -> Row:
        # None is a number that is not finite: a diverged run has a row of each step, too.
        values = {name: value for name, value in read_row.items() if name not in APART}
        loss = LOSS in values
        if not loss and "eval/loss" not in values and step >= self.step:
            self._apart.setdefault(step, {}).update(values)  # a learning rate that is logged before the loss
            return {}
        if loss:
            values = {**self._apart.get(step, {}), **values}
            self._apart = {other: kept for other, kept in self._apart.items() if other > step}
        if not values or step < (self.step if loss else self._evaluated):
            self._compare(step, values)
            return {}  # of an earlier attempt, or a part that repeats it
        own = _own_time(read_row)
        moment = now if own is None else own
        row: Row = {"global_step": step, **values, "time": moment, **self._start}
        if not loss:
            self._evaluated = step + 1
            return row
        self._losses[step] = values[LOSS]
        self._losses.pop(next(iter(self._losses)) if len(self._losses) > MAX_LOSSES else -1, None)
        done = step + 1 - self.step
        # Rows that are read together have one time: nothing shows how long each step took.
        timed = own is not None or alone
        if self._last is not None and timed and self._last[1] and moment > self._last[0] and done > 0:
            row["throughput/duration"] = (moment - self._last[0]) / done
        digest = self._tap.digest(step) if self._tap is not None else ""
        if digest:
            row["batch_digest"] = digest
        elements = self._tap.elements(step) if self._tap is not None else 0
        if elements:
            row["batch_elements"] = elements
        if self._last is not None:
            self.interval = max(self.interval, done)
        self._lag = float("inf") if own is None else now - own
        self.step, self._last = step + 1, (moment, timed)
        return row

    def _compare(self, step: int, values: JsonObject) -> None:
        """Note a second row of a step with another loss.

        Which one is recorded is left to chance.
        """
        before, loss = self._losses.get(step), values.get(LOSS)
        if before is not None and loss is not None and before != loss:
            self.conflict = (
                "two rows of step {} have the losses {:.6g} and {:.6g}: comparisons of losses will fail (hint: log "
                "one loss a step, from one process)".format(step, before, loss)
            )


def _own_time(row: JsonObject) -> Optional[float]:
    seconds = row.get("time")
    return float(seconds) if isinstance(seconds, (int, float)) and seconds > 0 else None


def _is_older(row: JsonObject, started: float) -> bool:
    own = _own_time(row)
    return own is not None and own < started


def _last_beginning(rows: List[Row]) -> int:
    """Return the index of the last row with a loss where steps begin again, or 0."""
    index_found, highest = 0, -1
    for index, row in enumerate(rows):
        if LOSS in row:
            step = int_of(row["global_step"])
            if step < highest:
                index_found = index
            highest = step
    return index_found
