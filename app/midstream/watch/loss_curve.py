"""A run's spliced curve, kept up to date row by row: always equal to `records.splice`, without splicing anew.

Rows lie by column (see `columns`), once, with the attempt that logged them; the splice only says which they are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from midstream.watch.columns import Columns
from midstream_engine import records

Row = Mapping[str, Any]


class _Splice:
    """Which row of which attempt stands at each place, as stretches of rows that follow one another in a file."""

    def __init__(self, attempts: Mapping[int, Columns]) -> None:
        self.attempts = dict(attempts)
        self.steps = array("q")
        self.starts: list[int] = []  # the place at which each stretch begins
        self.origins: list[tuple[int, int]] = []  # (attempt, index of its row) there
        self.merged: dict[int, Row] = {}  # place -> row, where several rows of a step were put together

    def copy(self) -> _Splice:
        twin = _Splice(self.attempts)
        twin.steps, twin.starts, twin.origins = self.steps[:], self.starts[:], self.origins[:]
        twin.merged = dict(self.merged)
        return twin

    def origin(self, place: int) -> tuple[int, int]:
        stretch = bisect_right(self.starts, place) - 1
        attempt, index = self.origins[stretch]
        return attempt, index + place - self.starts[stretch]

    def row(self, place: int) -> Row:
        if place in self.merged:
            return self.merged[place]
        attempt, index = self.origin(place)
        return {**self.attempts[attempt].row(index), "attempt": attempt}

    def append(self, step: int, attempt: int, index: int) -> None:
        place = len(self.steps)
        self.steps.append(step)
        if not self.origins or self.origin(place) != (attempt, index):
            self.starts.append(place)
            self.origins.append((attempt, index))

    def put(self, place: int, attempt: int, index: int) -> None:
        """Another row in the place of the one there."""
        self.merged.pop(place, None)
        if place + 1 < len(self.steps):
            self._cut(place + 1)
        self._cut(place)
        self.origins[bisect_left(self.starts, place)] = (attempt, index)
        self._join(place)

    def insert(self, place: int, step: int, attempt: int, index: int) -> None:
        if place < len(self.steps):
            self._cut(place)
        stretch = bisect_left(self.starts, place)
        self.starts[stretch:] = [place, *(start + 1 for start in self.starts[stretch:])]
        self.origins.insert(stretch, (attempt, index))
        self.steps.insert(place, step)
        if self.merged:
            self.merged = {at + (at >= place): row for at, row in self.merged.items()}
        self._join(place)

    def _cut(self, place: int) -> None:
        """Let a stretch begin at the place."""
        stretch = bisect_left(self.starts, place)
        if stretch == len(self.starts) or self.starts[stretch] != place:
            origin = self.origin(place)
            self.starts.insert(stretch, place)
            self.origins.insert(stretch, origin)

    def _join(self, place: int) -> None:
        """Let the stretch that begins at the place be part of the one before, where it goes on with it."""
        stretch = bisect_left(self.starts, place)
        if stretch:
            attempt, index = self.origins[stretch - 1]
            if self.origins[stretch] == (attempt, index + place - self.starts[stretch - 1]):
                del self.starts[stretch], self.origins[stretch]


class Rows(Sequence[Row]):
    """The first ``length`` rows of a splice that only ever grows: a value, without a copy. Rows are made as they are
    asked for; `numbers` gives a column of many at once."""

    __slots__ = ("_length", "_splice")

    def __init__(self, splice: _Splice, length: int):
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
            return [self._splice.row(place) for place in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._splice.row(index % self._length)

    def __iter__(self) -> Iterator[Row]:
        return map(self._splice.row, range(self._length))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows) and other._splice is self._splice:
            return other._length == self._length
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} rows>"

    def continues(self, before: object) -> bool:
        """Whether ``before`` is the beginning of these rows: what was taken of it still holds."""
        return isinstance(before, Rows) and before._splice is self._splice and before._length <= self._length

    def names(self) -> set[str]:
        """The names under which numbers were logged."""
        return {name for columns in tuple(self._splice.attempts.values()) for name in columns.numeric()}

    def place(self, step: float) -> int:
        """The first place whose step is not below ``step``."""
        return bisect_left(self._splice.steps, step, 0, self._length)

    def steps(self, start: int, stop: int) -> array[int]:
        return self._splice.steps[start:stop]

    def stretches(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """(attempt, first place, place after the last) of each stretch of rows that one attempt logged."""
        splice = self._splice
        while start < stop:
            stretch = bisect_right(splice.starts, start)
            end = min(stop, splice.starts[stretch] if stretch < len(splice.starts) else stop)
            yield splice.origins[stretch - 1][0], start, end
            start = end

    def numbers(self, name: str, start: int, stop: int) -> tuple[array[float], bytes]:
        """Column ``name`` of the rows ``start <= i < stop``: the values, and for each whether the row has one (a byte
        that is not 0). What is no number is not a number."""
        values, there = array("d"), bytearray()
        splice = self._splice
        for attempt, begin, end in self.stretches(start, stop):
            _, index = splice.origin(begin)
            some, known = splice.attempts[attempt].numbers(name, index, index + end - begin)
            values.extend(some)
            there += known
        for place, row in splice.merged.items():
            if start <= place < stop and name in row:
                value = row[name]
                values[place - start] = value if isinstance(value, int | float) else float("nan")
                there[place - start] = 1
        return values, bytes(there)


class Curve:
    """Rows of each attempt in, the spliced curve out. Not for several threads at once."""

    def __init__(self) -> None:
        self._attempts: dict[int, Columns] = {}
        self._lineage: records.Lineage | None = None
        self._fence: records.Fence | None = None
        self._epochs: dict[int, int] = {}
        self._spliced = _Splice({})
        self._shared = 0  # places of _spliced that somebody may hold: these never change

    def rows(self) -> Rows:
        """The curve as it is now; it stays what it is."""
        self._shared = len(self._spliced.steps)
        return Rows(self._spliced, self._shared)

    def govern(self, lineage: records.Lineage | None, fence: records.Fence | None) -> None:
        """Which attempts and steps count."""
        epochs = {entry.attempt: entry.epoch for entry in lineage.entries} if lineage else {}
        if fence == self._fence and epochs == self._epochs:
            return
        self._lineage, self._fence, self._epochs = lineage, fence, epochs
        self._splice()

    def restart(self, attempt: int) -> None:
        """Forget an attempt's rows: its file begins anew."""
        if self._attempts.pop(attempt, None):
            self._splice()

    def extend(self, attempt: int, rows: Sequence[Row]) -> None:
        """Take in the next rows of an attempt, in the order of its file."""
        columns = self._attempts.get(attempt)
        if columns is None:
            columns = self._attempts[attempt] = Columns()
            self._spliced.attempts[attempt] = columns
        begin = len(columns)
        for row in rows:
            columns.append(row)
        newest = attempt == max(self._attempts)
        for index in range(begin, len(columns)):
            step = self._accepted(attempt, columns, index)
            if step is None:
                continue
            known = self._spliced.steps
            if not known or step > known[-1]:
                self._spliced.append(step, attempt, index)
            elif newest:
                self._place(attempt, step, index)
            else:  # rows of an older attempt, late, under those of a newer one: rare
                self._splice()
                return

    def _accepted(self, attempt: int, columns: Columns, index: int) -> int | None:
        """The step of a row; None where it has none, or does not count."""
        step = columns.value(index, "global_step")
        if type(step) is not int:
            return None
        epoch = self._epochs.get(attempt, 1)
        return step if self._fence is None or self._fence.accepts(epoch, step + 1) else None

    def _place(self, attempt: int, step: int, index: int) -> None:
        """A row of the newest attempt, at a step that is not past the end: nothing comes after it in the splice."""
        place = bisect_left(self._spliced.steps, step)
        if place < self._shared:
            self._spliced, self._shared = self._spliced.copy(), 0
        spliced = self._spliced
        columns = self._attempts[attempt]
        if spliced.steps[place] != step:
            spliced.insert(place, step, attempt, index)
        elif columns.has(index, "train/loss"):
            spliced.put(place, attempt, index)
        else:
            spliced.merged[place] = _together(spliced.row(place), columns.row(index))

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
                    of, place = chosen[step]
                    before = merged.get(step) or {**self._attempts[of].row(place), "attempt": of}
                    merged[step] = _together(before, columns.row(index))
        spliced = _Splice(self._attempts)
        for place, step in enumerate(sorted(chosen)):
            spliced.append(step, *chosen[step])
            if step in merged:
                spliced.merged[place] = merged[step]
        self._spliced, self._shared = spliced, 0


def _together(row: Row, more: Row) -> Row:
    """A row, and what a later line of the same step adds to it."""
    return {**row, **{name: value for name, value in more.items() if name not in ("time", "attempt")}}
