"""A value of each run, by rank, computed in slices of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from midstream.tui.state.current_runs import RunChanges
from midstream.tui.state.screen_state import ScreenState

SMALL = 2000  # runs whose values are computed at once: they need no slices
ROWS_AT_ONCE = 250  # runs whose values are computed between two looks at the clock
TIMED_SHARE = 0.05  # of the time, in which values that change with time are computed again


class RunColumn:
    """The values of one function of runs.

    ``changed`` is True after a value has changed; its reader resets it.
    """

    def __init__(self, read: Callable[[int, ScreenState], object], *, timed: bool = False) -> None:
        """Create an empty column.

        Args:
            read: Returns the value of the run with this rank.
            timed: Values change with time alone. All of them are those of one moment.
        """
        self.values: list[Any] = []
        self.changed = True
        self._read = read
        self._timed = timed
        self._state = ScreenState()
        self._value: Any = None  # of each run until it is read
        self._left: Sequence[int] = ()  # ranks that are to be computed, from ``_next`` on
        self._next = 0
        self._spent = 0.0  # seconds of the last computation of all values
        self._again = 0.0  # moment from which on timed values are computed again

    @property
    def complete(self) -> bool:
        """Whether all values are computed."""
        return self._next >= len(self._left)

    @property
    def share(self) -> float:
        """Share of the values that are computed, 0..1."""
        return 1.0 if self.complete else self._next / len(self._left)

    def begin(self, count: int, state: ScreenState, ranks: Sequence[int] | None = None, value: Any = None) -> None:
        """Compute the values of ``count`` runs.

        Args:
            count: How many runs there are.
            state: State of the screen.
            ranks: The runs whose values are read; None: all. The others have ``value``.
            value: The value of the others, and of each run until it is read.
        """
        self.values, self._state, self._value = [value] * count, state, value
        self._left, self._next, self._spent = range(count) if ranks is None else ranks, 0, 0.0
        self.changed = True

    def update(self, changes: RunChanges, count: int, state: ScreenState) -> None:
        """Compute again what has changed."""
        due = self._timed and (count <= SMALL or time.monotonic() >= self._again)
        restart = self.complete and due
        self._state = state if restart or not self._timed else replace(state, now=self._state.now)
        if changes.moves is not None:
            self.values = changes.moves.moved(self.values, self._value)
            self._left, self._next = changes.moves.ranks(self._left[self._next :]), 0
            self.changed = True
        if restart:
            self._left, self._next, self._spent = range(count), 0, 0.0
        elif self.complete:
            self._left, self._next = changes.ranks, 0
        else:
            self._left, self._next = [*self._left[self._next :], *changes.ranks], 0

    def work(self, deadline: float) -> bool:
        """Compute values until a deadline, at least some. Return `complete`.

        ``deadline`` is a moment of `time.perf_counter`.
        """
        began = time.perf_counter()
        while not self.complete:
            self._put(self._left[self._next : self._next + ROWS_AT_ONCE])
            self._next += ROWS_AT_ONCE
            now = time.perf_counter()
            if now >= deadline and len(self._left) > SMALL:
                break
        if self._timed:
            self._spent += time.perf_counter() - began
            self._again = time.monotonic() + self._spent / TIMED_SHARE
        return self.complete

    def _put(self, ranks: Iterable[int]) -> None:
        values, read, state = self.values, self._read, self._state
        for rank in ranks:
            value = read(rank, state)
            if values[rank] != value:
                values[rank] = value
                self.changed = True
