"""A time limit that counts only the seconds in which this process ran.

The monotonic clock also counts the time in which a process was stopped (SIGSTOP) or starved. That time is no evidence
about the host that the process waits for.
"""

from __future__ import annotations

import time

POLL_INTERVAL = 1.0  # seconds, at most, between two checks of a deadline
MAX_STEP = 3.0  # seconds that count between two checks: in the rest of the time this process did not run
RECONNECT_STEP = 20.0  # seconds; the same where a check may include a reconnection


class Deadline:
    """A counter of the seconds between two checks, at most ``longest`` each.

    Without ``seconds`` the limit is never reached.
    """

    def __init__(self, seconds: float | None, longest: float = MAX_STEP) -> None:
        self.seconds = seconds
        self.spent = 0.0
        self._longest = longest
        self._checked = time.monotonic()

    def count(self) -> bool:
        """Count the time since the last check. True once the limit is reached."""
        now = time.monotonic()
        self.spent += min(self._longest, now - self._checked)
        self._checked = now
        return self.reached

    def skip(self) -> bool:
        """Leave out the time since the last check, in which nothing was observed.

        Returns True once the limit is reached.
        """
        self._checked = time.monotonic()
        return self.reached

    @property
    def reached(self) -> bool:
        """True once ``seconds`` have been counted."""
        return self.seconds is not None and self.spent >= self.seconds

    @property
    def step(self) -> float:
        """Seconds to wait until the next check."""
        if self.seconds is None:
            return POLL_INTERVAL
        return max(0.01, min(POLL_INTERVAL, self.seconds - self.spent))
