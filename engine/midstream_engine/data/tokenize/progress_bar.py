"""Progress of tokenizing: a bar on a terminal, else lines in the log.

The bar is shown if stderr is a terminal; a line is logged every few seconds.
"""

from __future__ import annotations

import logging
import sys
import time

log = logging.getLogger(__name__)
LINE_EVERY = 10.0  # seconds
_WIDTH = 24


class ProgressBar:
    """Counts units and bytes. ``reused``: units that an earlier process had finished."""

    def __init__(self, units: int, size: int) -> None:
        """Start with ``units`` units of ``size`` stored bytes in all, 0 if unknown."""
        self.units, self.size = units, size
        self.done = self.reused = self.bytes = self.tokens = 0
        self._fresh = 0  # bytes tokenized by this start
        self._began = self._said = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def add(self, size: int, tokens: int, reused: bool) -> None:
        """Count a finished unit and show the progress."""
        self.done, self.bytes, self.tokens = self.done + 1, self.bytes + size, self.tokens + tokens
        self.reused += reused
        self._fresh += 0 if reused else size
        now = time.monotonic()
        if self._terminal:
            share = self.done / self.units
            bar = ("#" * round(share * _WIDTH)).ljust(_WIDTH, ".")
            print(f"\r\033[Ktokenizing [{bar}] {self.text(now)}", end="", file=sys.stderr, flush=True)
        elif now - self._said > LINE_EVERY and self.done < self.units:
            self._said = now
            log.info("tokenizing: %s", self.text(now))

    def text(self, now: float) -> str:
        """Return the progress as one line of text.

        For example ``12 of 340 shards, 1.2 of 30.1 GB, 8.5 MB/s, 310.2 M tokens, 58 min left``.
        """
        parts = [f"{self.done} of {self.units} shards"]
        rate = self._fresh / max(now - self._began, 1e-9)
        if self.size:
            parts += [f"{self.bytes / 1e9:.2f} of {self.size / 1e9:.2f} GB", f"{rate / 1e6:.1f} MB/s"]
        parts.append(f"{self.tokens / 1e6:.1f} M tokens")
        if self.size and rate:
            seconds = max(0, self.size - self.bytes) / rate
            parts.append(f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left")
        return ", ".join(parts)

    def close(self) -> None:
        """End the terminal's line."""
        if self._terminal and self.done:
            print(file=sys.stderr)
