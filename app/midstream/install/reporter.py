"""Reports of a long operation: lasting lines, and a state that the next replaces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from midstream.format import estimate

SPARSE_INTERVAL = 30.0  # seconds between two lines about the same operation, where nothing can be replaced


class Reporter:
    """Receives reports from any thread. This base class drops them."""

    def __call__(self, line: str) -> None:
        """Report a line that stays."""

    def update(self, what: str, state: str, seconds_left: float | None = None) -> None:
        """Report the state of ``what``, such as ``lab``; it replaces the last one."""

    def end(self, what: str) -> None:
        """Report that ``what`` has ended."""

    def detail(self, line: str) -> None:
        """Report a line of a program's output, which only ``--verbose`` shows."""


class SparseReporter(Reporter):
    """A reporter of lines, with few of the states of each operation.

    The first state is reported, then at most one in `SPARSE_INTERVAL`.
    """

    def __init__(
        self, say: Callable[[str], None], *, verbose: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._verbose, self._clock = say, verbose, clock
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            self._say(line)

    def update(self, what: str, state: str, seconds_left: float | None = None) -> None:
        with self._lock:
            now = self._clock()
            if now - self._last.get(what, -SPARSE_INTERVAL) >= SPARSE_INTERVAL:
                self._last[what] = now
                self._say(state_line(what, state, seconds_left))

    def end(self, what: str) -> None:
        with self._lock:
            self._last.pop(what, None)

    def detail(self, line: str) -> None:
        if self._verbose:
            self(line)


def reporter_of(say: Callable[[str], None] | None) -> Reporter:
    """Return ``say`` as a reporter; None drops all reports."""
    if say is None:
        return Reporter()
    return say if isinstance(say, Reporter) else SparseReporter(say)


def state_line(what: str, state: str, seconds_left: float | None) -> str:
    """Return one line: ``lab: downloading ..., about 12s left``."""
    eta = "" if seconds_left is None else f", about {estimate(seconds_left)} left"
    return f"{what}: {state}{eta}"
