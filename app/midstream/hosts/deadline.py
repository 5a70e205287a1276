"""A time limit that counts only the seconds in which this process ran.

A process that is stopped (SIGSTOP), or starved for long, finds all of that time on the monotonic clock afterwards.
None of it says anything about the host that was waited for.
"""

from __future__ import annotations

import time

POLL_INTERVAL = 1.0  # seconds: the longest wait between two looks at a deadline
LONGEST_STEP = 3.0  # seconds that one such interval may count for: more is time in which this process did not run
REACHING_STEP = 20.0  # the same where a host may have to be reached between two looks


class Deadline:
    """Counts the seconds between two looks, each interval up to ``longest``. Without ``seconds`` it never ends."""

    def __init__(self, seconds: float | None, longest: float = LONGEST_STEP):
        self.seconds = seconds
        self.spent = 0.0
        self._longest = longest
        self._seen = time.monotonic()

    def count(self) -> bool:
        """Count the time since the last look; whether the limit is reached."""
        now = time.monotonic()
        self.spent += min(self._longest, now - self._seen)
        self._seen = now
        return self.reached

    def skip(self) -> bool:
        """Leave out the time since the last look, in which nothing could be observed; whether the limit is reached."""
        self._seen = time.monotonic()
        return self.reached

    @property
    def reached(self) -> bool:
        return self.seconds is not None and self.spent >= self.seconds

    @property
    def step(self) -> float:
        """Seconds to wait until the next look."""
        if self.seconds is None:
            return POLL_INTERVAL
        return max(0.01, min(POLL_INTERVAL, self.seconds - self.spent))
