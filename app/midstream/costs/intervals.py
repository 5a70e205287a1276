"""Sets of time: sorted, disjoint intervals of UTC seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]  # begin, end
Intervals = tuple[Interval, ...]


def union(*parts: Iterable[Interval]) -> Intervals:
    """Return the time in any of the intervals, without empty and reversed ones."""
    merged: list[Interval] = []
    for begin, end in sorted(interval for intervals in parts for interval in intervals):
        if end <= begin:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return tuple(merged)


def common(first: Sequence[Interval], second: Sequence[Interval]) -> Intervals:
    """Return the time that is in both sets."""
    return union((max(a, c), min(b, d)) for a, b in first for c, d in second)


def without(first: Sequence[Interval], second: Sequence[Interval]) -> Intervals:
    """Return the time of the first set that is not in the second."""
    intervals: list[Interval] = []
    for begin, end in first:
        for a, b in second:
            if a >= end:
                break
            if b > begin:
                intervals.append((begin, a))
                begin = max(begin, b)
        intervals.append((begin, end))
    return union(intervals)


def seconds(intervals: Iterable[Interval]) -> float:
    """Return the length of all intervals."""
    return sum(end - begin for begin, end in intervals)
