"""One view of each run by its rank, updated with what has changed.

A rank is the index of a run in the order of ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from midstream.watch.snapshot import RunView, Snapshot


@dataclass(frozen=True)
class RunChanges:
    """Changes between two snapshots.

    Attributes:
        ranks: Ranks of the runs of which a copy has changed, new ones among them.
        before: The earlier rank of each run, -1 of a new one; None if no run came or went.
        order: Whether `DefaultOrder` has changed.
    """

    ranks: Sequence[int] = ()
    before: Sequence[int] | None = None
    order: bool = False


class CurrentRuns:
    """The copy of each run with the highest fence epoch, by rank."""

    def __init__(self) -> None:
        self.views: list[RunView] = []
        self.ids: Sequence[str] = ()
        self.running: list[int] = []  # ranks of the runs with a running process, ascending
        self._snapshot: Snapshot | None = None

    def __len__(self) -> int:
        return len(self.views)

    @property
    def order(self) -> DefaultOrder:
        """Ranks in the order of the list: runs with a running process first."""
        return DefaultOrder(tuple(self.running), len(self.views))

    def update(self, snapshot: Snapshot) -> RunChanges:
        """Take over a newer snapshot. Return what has changed since the last one."""
        before, self._snapshot = self._snapshot, snapshot
        if before is None or before.order is not snapshot.order:
            return self._rebuild(snapshot)
        if before is snapshot:
            return RunChanges()
        ranks, running_before = set[int](), list(self.running)
        several = snapshot.order.several
        for _, run in snapshot.changes_since(before):
            rank = bisect_left(self.ids, run.run_id)
            current = snapshot.copies(run.run_id)[0] if run.run_id in several else run
            if current.running != self.views[rank].running:
                if current.running:
                    insort(self.running, rank)
                else:
                    self.running.remove(rank)
            self.views[rank] = current
            ranks.add(rank)
        return RunChanges(tuple(ranks), order=self.running != running_before)

    def _rebuild(self, snapshot: Snapshot) -> RunChanges:
        known = {run_id: rank for rank, run_id in enumerate(self.ids)}
        views, several = self.views, snapshot.order.several
        self.ids, self.views = snapshot.order.ids, list(snapshot.current())
        before = [known.get(run_id, -1) for run_id in self.ids]
        ranks = [
            rank
            for rank, (place, run) in enumerate(zip(before, self.views, strict=True))
            if place < 0 or views[place] is not run or run.run_id in several
        ]
        self.running = [rank for rank, run in enumerate(self.views) if run.running]
        return RunChanges(ranks, before, order=True)


class DefaultOrder(Sequence[int]):
    """The numbers below ``count``: those in ``first`` before the others.

    Both parts ascend. It takes the memory of ``first`` alone.
    """

    def __init__(self, first: Sequence[int], count: int) -> None:
        self._first = first
        self._count = count
        self._below = [rank - place for place, rank in enumerate(first)]  # how many others are below each

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        index %= self._count
        if index < len(self._first):
            return self._first[index]
        other = index - len(self._first)
        return other + bisect_right(self._below, other)

    def __iter__(self) -> Iterator[int]:
        yield from self._first
        yield from self._others()

    def _others(self) -> Iterable[int]:
        begin = 0
        for rank in self._first:
            yield from range(begin, rank)
            begin = rank + 1
        yield from range(begin, self._count)

    def index(self, value: int, start: int = 0, stop: int | None = None) -> int:
        """Return the index of a number. ValueError if it is none of them."""
        if not 0 <= value < self._count:
            raise ValueError(value)
        place = bisect_left(self._first, value)
        found = place < len(self._first) and self._first[place] == value
        index = place if found else len(self._first) + value - place
        if index < start or (stop is not None and index >= stop):
            raise ValueError(value)
        return index

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and 0 <= value < self._count
