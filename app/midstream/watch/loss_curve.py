"""Spliced loss curve of a run, updated row by row.

Every step is from the newest accepted attempt that has it.

Row ``k`` of an attempt is accepted where the fence accepts the state that it led to, ``step-<k+1>``, of the start that
wrote the row. A row of an earlier version has no start, and the epoch of its attempt decides.
Each attempt's rows are stored once, by column (see `metric_columns`); the splice consists of references to them.
"""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from midstream.counts import count
from midstream.watch.metric_columns import MetricColumns
from midstream_core import records

Row = Mapping[str, Any]
MAX_INSERTED = 64  # rows of one report that are inserted between others; each takes the time of the rows after it


class _Splice:
    """Rows of the curve by position, as stretches of an attempt's consecutive rows."""

    __slots__ = ("attempts", "merged", "origins", "starts", "steps")

    def __init__(self, attempts: Mapping[int, MetricColumns]) -> None:
        self.attempts = attempts  # no copy: an attempt is added to it, and never replaced
        self.steps = array("q")
        self.starts: list[int] = []  # the position at which each stretch begins
        self.origins: list[tuple[int, int]] = []  # (attempt, index of its row) at that position
        self.merged: dict[int, Row] = {}  # position -> row, where several rows of a step were merged

    def copy(self) -> _Splice:
        duplicate = _Splice(self.attempts)
        duplicate.steps, duplicate.starts, duplicate.origins = self.steps[:], self.starts[:], self.origins[:]
        duplicate.merged = dict(self.merged)
        return duplicate

    def origin(self, position: int) -> tuple[int, int]:
        stretch = bisect_right(self.starts, position) - 1
        attempt, index = self.origins[stretch]
        return attempt, index + position - self.starts[stretch]

    def row(self, position: int) -> Row:
        if position in self.merged:
            return self.merged[position]
        attempt, index = self.origin(position)
        return {**self.attempts[attempt].row(index), "attempt": attempt}

    def get(self, position: int, name: str) -> tuple[bool, Any]:
        """Return (True if the row has the name, its value), without the rest of the row."""
        if name == "attempt" or position in self.merged:
            row = self.row(position)
            return name in row, row.get(name)
        attempt, index = self.origin(position)
        columns = self.attempts[attempt]
        return columns.has(index, name), columns.value(index, name)

    def append(self, step: int, attempt: int, index: int) -> None:
        position = len(self.steps)
        self.steps.append(step)
        if not self.origins or self.origin(position) != (attempt, index):
            self.starts.append(position)
            self.origins.append((attempt, index))

    def put(self, position: int, attempt: int, index: int) -> None:
        """Replace the row at a position."""
        self.merged.pop(position, None)
        if position + 1 < len(self.steps):
            self._cut(position + 1)
        self._cut(position)
        self.origins[bisect_left(self.starts, position)] = (attempt, index)
        self._join(position)

    def insert(self, position: int, step: int, attempt: int, index: int) -> None:
        if position < len(self.steps):
            self._cut(position)
        stretch = bisect_left(self.starts, position)
        self.starts[stretch:] = [position, *(start + 1 for start in self.starts[stretch:])]
        self.origins.insert(stretch, (attempt, index))
        self.steps.insert(position, step)
        if self.merged:
            self.merged = {at + (at >= position): row for at, row in self.merged.items()}
        self._join(position)

    def _cut(self, position: int) -> None:
        """Begin a stretch at the position."""
        stretch = bisect_left(self.starts, position)
        if stretch == len(self.starts) or self.starts[stretch] != position:
            origin = self.origin(position)
            self.starts.insert(stretch, position)
            self.origins.insert(stretch, origin)

    def _join(self, position: int) -> None:
        """Join the stretch at the position with the one before, if it continues it.

        The stretch is the one that begins at the position.
        """
        stretch = bisect_left(self.starts, position)
        if stretch:
            attempt, index = self.origins[stretch - 1]
            if self.origins[stretch] == (attempt, index + position - self.starts[stretch - 1]):
                del self.starts[stretch], self.origins[stretch]


class CurveRows(Sequence[Row]):
    """First ``length`` rows of a splice that only grows: an immutable value, no copy.

    Each access builds its row; `numbers` returns a column of many rows.
    """

    __slots__ = ("_length", "_splice")

    def __init__(self, splice: _Splice, length: int) -> None:
        self._splice = splice
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._splice.row(position) for position in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._splice.row(index % self._length)

    def __iter__(self) -> Iterator[Row]:
        return map(self._splice.row, range(self._length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CurveRows) and other._splice is self._splice:
            return other._length == self._length
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{count(self._length, 'row')}>"

    def continues(self, before: object) -> bool:
        """Return True if ``before`` is a prefix of these rows.

        Values derived from it are then still valid.
        """
        return isinstance(before, CurveRows) and before.is_prefix(self._splice, self._length)

    def is_prefix(self, splice: _Splice, length: int) -> bool:
        """Return True if these are the first rows of ``length`` rows of this splice."""
        return self._splice is splice and self._length <= length

    def newest(self, name: str, rows: int | None = None) -> object:
        """Return the newest value of a metric, None without one.

        ``rows``: how many of the last rows are searched; None: all.
        """
        if name != "attempt" and not any(attempt.has_column(name) for attempt in tuple(self._splice.attempts.values())):
            return None  # without a look at each row: a trainer may log no loss at all
        for position in range(self._length - 1, max(-1, self._length - 1 - (rows or self._length)), -1):
            exists, value = self._splice.get(position, name)
            if exists:
                return value
        return None

    def names(self) -> set[str]:
        """Return the names of numeric metrics."""
        return {name for columns in tuple(self._splice.attempts.values()) for name in columns.numeric()}

    def steps(self, start: int, stop: int) -> array[int]:
        """Return the steps of the rows ``start <= i < stop``."""
        return self._splice.steps[start:stop]

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (attempt, first position, position after the last) of each stretch.

        A stretch has rows of one attempt.
        """
        splice = self._splice
        while start < stop:
            stretch = bisect_right(splice.starts, start)
            end = min(stop, splice.starts[stretch] if stretch < len(splice.starts) else stop)
            yield splice.origins[stretch - 1][0], start, end
            start = end

    def given_up(self) -> Iterator[tuple[int, int, int]]:
        """Yield (attempt, begin, stop) of the rows that are given up.

        A row is given up where an earlier attempt wrote it behind its last one that counts.
        """
        last = {attempt: self._splice.origin(end - 1)[1] for attempt, _, end in self.stretches(0, self._length)}
        for attempt in sorted(self._splice.attempts)[:-1]:
            begin, stop = last.get(attempt, -1) + 1, len(self._splice.attempts[attempt])
            if begin < stop:
                yield attempt, begin, stop

    def points_of(self, attempt: int, name: str, begin: int, stop: int) -> tuple[array[float], array[float]]:
        """Return steps and values of an attempt's rows that have the name.

        Steps are in ascending order.
        """
        columns, x, y = self._splice.attempts[attempt], array("d"), array("d")
        steps, _ = columns.numbers("global_step", begin, stop)
        values, exists = columns.numbers(name, begin, stop)
        for step, value, present in zip(steps, values, exists, strict=True):
            if present and (not x or step > x[-1]):
                x.append(step)
                y.append(value)
        return x, y

    def numbers(self, name: str, start: int, stop: int) -> tuple[array[float], bytes]:
        """Return column ``name`` of the rows ``start <= i < stop``, and which have it.

        The latter is one byte for each row: not 0 if the row has it.

        Values that are no numbers are NaN.
        """
        values, exists = array("d"), bytearray()
        splice = self._splice
        for attempt, begin, end in self.stretches(start, stop):
            _, index = splice.origin(begin)
            some, present = splice.attempts[attempt].numbers(name, index, index + end - begin)
            values.extend(some)
            exists += present
        for position, row in tuple(splice.merged.items()):  # the thread of the host's feed adds further ones
            if start <= position < stop and name in row:
                value = row[name]
                values[position - start] = value if isinstance(value, int | float) else float("nan")
                exists[position - start] = 1
        return values, bytes(exists)


def newest_value(curve: Sequence[Row], name: str, rows: int | None = None) -> Any:
    """Return the newest value of a metric, None without one.

    ``rows``: how many of the last rows are searched; None: all.
    """
    if isinstance(curve, CurveRows):
        return curve.newest(name, rows)
    searched = curve if rows is None else curve[-rows:]
    return next((row[name] for row in reversed(searched) if name in row), None)


def numbers(curve: Sequence[Row], name: str, start: int, stop: int) -> tuple[array[float], bytes]:
    """Return a column of the rows ``start <= i < stop``, as `CurveRows.numbers` does."""
    if isinstance(curve, CurveRows):
        return curve.numbers(name, start, stop)
    values = [row.get(name) for row in curve[start:stop]]
    return (
        array("d", [value if isinstance(value, int | float) else float("nan") for value in values]),
        bytes(name in row for row in curve[start:stop]),
    )


@functools.lru_cache(maxsize=1024)
def _epochs(of: tuple[tuple[int, int], ...]) -> Mapping[int, int]:
    """Return attempt -> epoch, one dict for all runs with the same ones.

    Most runs have one attempt.
    """
    return dict(of)


class LossCurve:
    """Splices the rows of attempts into one curve. Not thread-safe."""

    __slots__ = ("_attempts", "_epochs", "_fence", "_limits", "_lineage", "_shared", "_spliced")

    def __init__(self) -> None:
        self._attempts: dict[int, MetricColumns] = {}
        self._lineage: records.Lineage | None = None
        self._fence: records.Fence | None = None
        self._epochs: Mapping[int, int] = _epochs(())
        self._limits: dict[tuple[int, int | None], float] = {}  # (attempt, start) -> last step that counts
        self._spliced = _Splice(self._attempts)
        self._shared = 0  # positions of _spliced that a CurveRows may refer to: these never change

    def rows(self) -> CurveRows:
        """Return the current curve as an immutable value."""
        self._shared = len(self._spliced.steps)
        return CurveRows(self._spliced, self._shared)

    def set_records(self, lineage: records.Lineage | None, fence: records.Fence | None) -> None:
        """Set the records that decide which attempts and steps count."""
        epochs = _epochs(tuple((entry.attempt, entry.epoch) for entry in lineage.entries) if lineage else ())
        if fence == self._fence and epochs == self._epochs:
            return
        self._lineage, self._fence, self._epochs, self._limits = lineage, fence, epochs, {}
        self._splice()

    def restart(self, attempt: int) -> None:
        """Drop an attempt's rows, because its file was replaced."""
        if attempt in self._attempts:  # in a new dict: rows that were returned earlier stay as they are
            self._attempts = {number: rows for number, rows in self._attempts.items() if number != attempt}
            self._splice()

    def extend(self, attempt: int, rows: Sequence[Row]) -> None:
        """Add the next rows of an attempt, in the order of its file."""
        columns = self._attempts.get(attempt)
        if columns is None:
            columns = self._attempts[attempt] = MetricColumns()
        begin = len(columns)
        columns.extend(rows)
        newest, inserted = attempt == max(self._attempts), 0
        for index in range(begin, len(columns)):
            step = self._accepted(attempt, columns, index)
            if step is None:
                continue
            steps = self._spliced.steps
            if not steps or step > steps[-1]:
                self._spliced.append(step, attempt, index)
            elif newest and inserted < MAX_INSERTED:
                inserted += self._place(attempt, step, index)
            else:  # late rows of an older attempt, or many in no order: rare
                self._splice()
                return

    def _accepted(self, attempt: int, columns: MetricColumns, index: int) -> int | None:
        """Return the step of a row, None if it has none or does not count."""
        step = columns.value(index, "global_step")
        if type(step) is not int:
            return None
        if self._fence is None:
            return step
        start = records.start_of({records.START_NUMBER: columns.value(index, records.START_NUMBER)})
        limit = self._limits.get((attempt, start))
        if limit is None:
            epoch = self._epochs.get(attempt, 1)
            limit = self._fence.epoch_limit(epoch)
            if start is not None:
                limit = min(limit, self._fence.start_limit(epoch, start))
            self._limits[attempt, start] = limit
        return step if step + 1 <= limit else None

    def _place(self, attempt: int, step: int, index: int) -> bool:
        """Place a row of the newest attempt at a step before the end.

        Rows of the newest attempt take precedence. The result is True if the row is inserted between others.
        """
        position = bisect_left(self._spliced.steps, step)
        if position < self._shared:
            self._spliced, self._shared = self._spliced.copy(), 0
        spliced = self._spliced
        columns = self._attempts[attempt]
        if spliced.steps[position] != step:
            spliced.insert(position, step, attempt, index)
            return True
        if columns.has(index, "train/loss"):
            spliced.put(position, attempt, index)
        else:
            spliced.merged[position] = _merged(spliced.row(position), columns.row(index))
        return False

    def _splice(self) -> None:
        chosen: dict[int, tuple[int, int]] = {}
        merged: dict[int, Row] = {}
        for attempt in sorted(self._attempts):
            columns = self._attempts[attempt]
            for index in range(len(columns)):
                step = self._accepted(attempt, columns, index)
                if step is None:
                    continue
                if columns.has(index, "train/loss") or step not in chosen:
                    chosen[step] = (attempt, index)
                    merged.pop(step, None)
                else:
                    of, position = chosen[step]
                    before = merged.get(step) or {**self._attempts[of].row(position), "attempt": of}
                    merged[step] = _merged(before, columns.row(index))
        spliced = _Splice(self._attempts)
        for position, step in enumerate(sorted(chosen)):
            spliced.append(step, *chosen[step])
            if step in merged:
                spliced.merged[position] = merged[step]
        self._spliced, self._shared = spliced, 0


def _merged(row: Row, more: Row) -> Row:
    """Merge a row with a later line of the same step."""
    return {**row, **{name: value for name, value in more.items() if name not in ("time", "attempt")}}
