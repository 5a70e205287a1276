"""A run's spliced curve, kept up to date row by row: always equal to `records.splice`, without splicing anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, overload

from midstream_engine import records

Row = Mapping[str, Any]


class Rows(Sequence[Row]):
    """The first ``length`` rows of a list that only ever grows: a value, without a copy."""

    __slots__ = ("_length", "_rows")

    def __init__(self, rows: Sequence[Row], length: int):
        self._rows = rows
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._rows[place] for place in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._rows[index % self._length]

    def __iter__(self) -> Iterator[Row]:
        return islice(self._rows, self._length)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows) and other._rows is self._rows:
            return other._length == self._length
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} rows>"


class Curve:
    """Rows of each attempt in, the spliced curve out. Not for several threads at once."""

    def __init__(self) -> None:
        self._attempts: dict[int, list[Row]] = {}
        self._lineage: records.Lineage | None = None
        self._fence: records.Fence | None = None
        self._epochs: dict[int, int] = {}
        self._spliced: list[Row] = []
        self._shared = 0  # rows of _spliced that somebody may hold: these never change

    def rows(self) -> Rows:
        """The curve as it is now; it stays what it is."""
        self._shared = len(self._spliced)
        return Rows(self._spliced, len(self._spliced))

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
        # One dict a row, in its attempt's list and in the curve. Not of rows that only add to another row: whose that
        # is stays.
        kept = [{**row, "attempt": attempt} if "train/loss" in row else row for row in rows]
        self._attempts.setdefault(attempt, []).extend(kept)
        newest = attempt == max(self._attempts)
        epoch = self._epochs.get(attempt, 1)
        for row in kept:
            step = row.get("global_step")
            if step is None or (self._fence is not None and not self._fence.accepts(epoch, step + 1)):
                continue
            if not self._spliced or step > self._spliced[-1]["global_step"]:
                self._spliced.append(row if "train/loss" in row else {**row, "attempt": attempt})
            elif newest:
                self._place(attempt, step, row)
            else:  # rows of an older attempt, late, under those of a newer one: rare
                self._splice()
                return

    def _place(self, attempt: int, step: int, row: Row) -> None:
        """A row of the newest attempt, at a step that is not past the end: nothing comes after it in the splice."""
        place = bisect_left(self._spliced, step, key=lambda known: known["global_step"])
        if place < self._shared:
            self._spliced, self._shared = list(self._spliced), 0
        if self._spliced[place]["global_step"] != step:
            self._spliced.insert(place, {**row, "attempt": attempt})
        elif "train/loss" in row:
            self._spliced[place] = row
        else:
            self._spliced[place] = {
                **self._spliced[place],
                **{k: v for k, v in row.items() if k not in ("time", "attempt")},
            }

    def _splice(self) -> None:
        lineage = self._lineage or records.Lineage("")
        self._spliced = [*records.splice(self._attempts, lineage, self._fence)]
        self._shared = 0
