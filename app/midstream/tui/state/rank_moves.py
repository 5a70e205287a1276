"""New ranks of runs after some came or went.

A rank is the index of a run in the order of ids. The runs that stay keep their order, so they move in stretches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

Value = TypeVar("Value")


class RankMoves:
    """Stretches of runs that stay, each with the rank that it begins at now.

    Attributes:
        stretches: (earlier rank of its first run, earlier rank after its last one, rank of its first run now).
    """

    def __init__(self, before: int, count: int, *, added: Sequence[int], removed: Sequence[int]) -> None:
        """Find the stretches.

        Args:
            before: How many runs there were.
            count: How many runs there are.
            added: Ranks of the new runs, ascending.
            removed: Earlier ranks of the runs that went, ascending.
        """
        self._before, self._count = before, count
        self.stretches: list[tuple[int, int, int]] = []
        beyond = before + count
        news, olds = [*added, beyond], [*removed, beyond]
        old = new = new_place = old_place = 0
        while old < before:
            if new == news[new_place]:
                new, new_place = new + 1, new_place + 1
            elif old == olds[old_place]:
                old, old_place = old + 1, old_place + 1
            else:
                length = min(news[new_place] - new, olds[old_place] - old, before - old)
                self.stretches.append((old, old + length, new))
                old, new = old + length, new + length

    def moved(self, values: Sequence[Value], missing: Value) -> list[Value]:
        """Return values by the ranks now; those of new runs are ``missing``."""
        moved: list[Value] = []
        for begin, end, place in self.stretches:
            moved += [missing] * (place - len(moved))
            moved += values[begin:end]
        return moved + [missing] * (self._count - len(moved))

    def ranks(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks now of runs with these earlier ranks, without those that went."""
        now = self._now
        return [place for rank in ranks if (place := now[rank]) >= 0]

    def ascending(self, ranks: Sequence[int]) -> list[int]:
        """Do the same as `ranks` for few ranks, which ascend."""
        ascending: list[int] = []
        for begin, end, place in self.stretches:
            first, last = bisect_left(ranks, begin), bisect_left(ranks, end)
            ascending += [rank - begin + place for rank in ranks[first:last]]
        return ascending

    @cached_property
    def _now(self) -> list[int]:
        """The rank now of each earlier one, -1 of a run that went."""
        ranks: list[int] = []
        for begin, end, place in self.stretches:
            ranks += [-1] * (begin - len(ranks))
            ranks += range(place, place + end - begin)
        return ranks + [-1] * (self._before - len(ranks))
