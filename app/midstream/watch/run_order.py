"""Runs of a fleet, host by host and in the order of their ids.

Both orders are values that snapshots share: with many runs, making them takes longer than all else in a snapshot.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain
from typing import Generic, Protocol, TypeVar, overload


class CopyOfRun(Protocol):
    """A copy of a run on a host."""

    @property
    def run_id(self) -> str: ...
    @property
    def host(self) -> str: ...


Copy = TypeVar("Copy", bound=CopyOfRun)
_run_id = operator.attrgetter("run_id")


class RunsByHost(Sequence[Copy], Generic[Copy]):
    """Views of all hosts' runs, host by host, without a copy of them.

    Attributes:
        numbers: Host -> its index in ``hosts``.
        hosts: The views on each host, in the order of their ids.
    """

    def __init__(self, numbers: Mapping[str, int], hosts: Iterable[tuple[Copy, ...]]) -> None:
        self.numbers = numbers
        self.hosts = tuple(hosts)

    @classmethod
    def of(cls, runs: Iterable[Copy]) -> RunsByHost[Copy]:
        """Return the views by host, in the order in which the hosts occur."""
        by_host: dict[str, list[Copy]] = {}
        for run in runs:
            by_host.setdefault(run.host, []).append(run)
        numbers = {host: number for number, host in enumerate(by_host)}
        return cls(numbers, (tuple(sorted(views, key=_run_id)) for views in by_host.values()))

    @cached_property
    def _starts(self) -> list[int]:
        return list(accumulate(map(len, self.hosts), initial=0))

    def __len__(self) -> int:
        return sum(map(len, self.hosts))

    @overload
    def __getitem__(self, index: int) -> Copy: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Copy]: ...
    def __getitem__(self, index: int | slice) -> Copy | Sequence[Copy]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        number = bisect_left(self._starts, index + 1) - 1
        return self.hosts[number][index - self._starts[number]]

    def __iter__(self) -> Iterator[Copy]:
        return chain.from_iterable(self.hosts)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence):
            return len(self) == len(other) and all(map(operator.eq, self, other))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def on(self, host: str) -> tuple[Copy, ...]:
        """Return the views on a host, none of an unknown host."""
        number = self.numbers.get(host)
        return self.hosts[number] if number is not None else ()

    def copy(self, number: int, run_id: str) -> Copy:
        """Return the view of a run on host ``number``, which has one."""
        views = self.hosts[number]
        return views[bisect_left(views, run_id, key=_run_id)]


class RunOrder:
    """Ids of the runs in order, and the hosts that have a copy of each. Immutable."""

    __slots__ = ("_hosts", "ids", "several")

    def __init__(self, hosts: dict[str, int | tuple[int, ...]], ids: list[str], several: frozenset[str]) -> None:
        self._hosts = hosts  # one number without a tuple: nearly all runs are on one host
        self.ids = ids
        self.several = several  # ids of the runs with copies on several hosts

    @classmethod
    def of(cls, runs: RunsByHost[Copy]) -> RunOrder:
        """Return the order of these runs."""
        empty = RunsByHost[Copy](runs.numbers, ((),) * len(runs.hosts))
        return cls({}, [], frozenset()).updated(empty, runs)

    def __len__(self) -> int:
        return len(self.ids)

    def hosts(self, run_id: str) -> tuple[int, ...]:
        """Return the numbers of the hosts with a copy of the run, in their order."""
        host = self._hosts.get(run_id, ())
        return (host,) if isinstance(host, int) else host

    def rank(self, run_id: str) -> int | None:
        """Return the index of a run in ``ids``, None of an unknown run."""
        rank = bisect_left(self.ids, run_id)
        return rank if rank < len(self.ids) and self.ids[rank] == run_id else None

    def updated(self, before: RunsByHost[Copy], after: RunsByHost[Copy]) -> RunOrder:
        """Return the order after a change: this one if no run came or went.

        Args:
            before: The runs whose order this is.
            after: The same hosts with other runs.
        """
        changes = [
            (number, dropped, appeared)
            for number, (old, new) in enumerate(zip(before.hosts, after.hosts, strict=True))
            if old is not new
            for dropped, appeared in [_differences(old, new)]
            if dropped or appeared
        ]
        if not changes:
            return self
        hosts, several = self._hosts.copy(), set(self.several)
        removed, added = set[str](), list[str]()
        for number, dropped, appeared in changes:
            for run_id in dropped:
                others = tuple(other for other in _numbers(hosts[run_id]) if other != number)
                hosts[run_id] = others[0] if len(others) == 1 else others
                removed.add(run_id)
            for run_id in appeared:
                numbers = _numbers(hosts[run_id]) if run_id in hosts else ()
                if run_id not in hosts:
                    added.append(run_id)
                hosts[run_id] = tuple(sorted((*numbers, number))) if numbers else number
                several.update((run_id,) if numbers else ())
        for run_id in removed:
            if not isinstance(hosts[run_id], tuple):
                several.discard(run_id)
            elif not hosts[run_id]:
                del hosts[run_id]
                several.discard(run_id)
        ids = [run_id for run_id in self.ids if run_id in hosts] if removed else list(self.ids)
        ids += sorted(added)
        ids.sort()  # of two ascending parts: one comparison for each id
        return RunOrder(hosts, ids, frozenset(several))


def _numbers(numbers: int | tuple[int, ...]) -> tuple[int, ...]:
    return (numbers,) if isinstance(numbers, int) else numbers


def _differences(old: Sequence[CopyOfRun], new: Sequence[CopyOfRun]) -> tuple[set[str], set[str]]:
    """Return the ids that only ``old`` has, and those that only ``new`` has."""
    before, after = list(map(_run_id, old)), list(map(_run_id, new))
    if before == after:
        return set(), set()
    return set(before) - set(after), set(after) - set(before)
