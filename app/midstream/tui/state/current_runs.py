"""One view of each run by its rank, updated with what has changed.

A rank is the index of a run in the order of ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import overload

from midstream.tui.state.rank_moves import RankMoves
from midstream.watch.run_order import RunOrder, RunsByHost
from midstream.watch.snapshot import RunView, Snapshot


@dataclass(frozen=True)
class RunChanges:
    """Changes between two snapshots.

    Attributes:
        ranks: Ranks of the runs of which a copy has changed, new ones among them.
        moves: New ranks of the runs; None if no run came or went.
        order: Whether `DefaultOrder` has changed.
    """

    ranks: Sequence[int] = ()
    moves: RankMoves | None = None
    order: bool = False


class CurrentRuns:
    """The copy of each run with the highest fence epoch, by rank."""

    def __init__(self) -> None:
        self.views: list[RunView] = []
        self.running: list[int] = []  # ranks of the runs with a running process, ascending
        self._order = RunOrder({}, [], frozenset())
        self._snapshot: Snapshot | None = None

    def __len__(self) -> int:
        return len(self.views)

    @property
    def ids(self) -> Sequence[str]:
        """The ids by rank."""
        return self._order.ids

    @property
    def order(self) -> DefaultOrder:
        """Ranks in the order of the list: runs with a running process first."""
        return DefaultOrder(tuple(self.running), len(self.views))

    def update(self, snapshot: Snapshot) -> RunChanges:
        """Take over a newer snapshot. Return what has changed since the last one.

        An update takes the time of the hosts that have reported; lists are copied where runs came or went.
        """
        before, self._snapshot = self._snapshot, snapshot
        if before is snapshot:
            return RunChanges()
        changed, order = _changes(before, snapshot), snapshot.order
        moves = self._move(order, changed) if order is not self._order else None
        ranks, running = list[int](), set(self.running)
        for run_id, changed_view in changed.items():
            if (rank := order.rank(run_id)) is None:
                continue  # no host has it any more
            view = (
                changed_view if changed_view is not None and run_id not in order.several else snapshot.copies(run_id)[0]
            )
            self.views[rank] = view
            ranks.append(rank)
            (running.add if view.running else running.discard)(rank)
        order_changed = moves is not None or len(running) != len(self.running) or not running.issuperset(self.running)
        if order_changed:
            self.running = sorted(running)
        return RunChanges(tuple(ranks), moves, order_changed)

    def _move(self, order: RunOrder, changed: Iterable[str]) -> RankMoves | None:
        """Move what is known of runs to their new ranks; None if no run came or went."""
        before, self._order = self._order, order
        added = sorted(
            rank for run_id in changed if before.rank(run_id) is None if (rank := order.rank(run_id)) is not None
        )
        removed = sorted(
            rank for run_id in changed if order.rank(run_id) is None if (rank := before.rank(run_id)) is not None
        )
        if not added and not removed:
            return None
        moves = RankMoves(len(before), len(order), added=added, removed=removed)
        self.views, self.running = moves.moved(self.views, _NO_VIEW), moves.ascending(self.running)
        return moves


_NO_VIEW = RunView("", "", None, None, 0, None, False)  # in the place of a new run until its view is there


def _changes(before: Snapshot | None, now: Snapshot) -> dict[str, RunView | None]:
    """Return the id of each run with a copy that has changed, or that came or went.

    The value is a copy that has changed or come, if there is one.
    """
    new = now.by_host
    old = before.by_host if before is not None else RunsByHost[RunView](new.numbers, ())
    if old.numbers is not new.numbers and old.numbers != new.numbers:
        return {**dict.fromkeys(run.run_id for run in old), **{run.run_id: run for run in new}}
    changed: dict[str, RunView | None] = {}
    for then, current in zip_longest(old.hosts, new.hosts, fillvalue=()):
        if then is not current:
            earlier = {run.run_id: run for run in then}
            for run in current:
                if earlier.pop(run.run_id, None) is not run:
                    changed[run.run_id] = run
            for run_id in earlier:
                changed.setdefault(run_id, None)
    return changed


class DefaultOrder(Sequence[int]):
    """The numbers below ``count``, those in ``first`` before the others.

    Both parts ascend. Only ``first`` takes memory.
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
        is_first = place < len(self._first) and self._first[place] == value
        index = place if is_first else len(self._first) + value - place
        if index < start or (stop is not None and index >= stop):
            raise ValueError(value)
        return index

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and 0 <= value < self._count
