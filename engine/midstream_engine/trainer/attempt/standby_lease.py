"""How long an attempt that stands by lives without a word of whoever told it to."""

from __future__ import annotations

import logging
import os
import time

from midstream_engine.trainer.attempt.attempt_record import Attempt

log = logging.getLogger(__name__)
SECONDS = 3600.0  # accelerators are not held for ever; $MIDSTREAM_STANDBY_SECONDS says otherwise
LOOK = 1.0  # seconds between two looks at the file


class Lease:
    """Renewed whenever the attempt's ``lease`` file is written anew. Counted by this process's own clock from when it
    sees that: clocks of different machines are not compared. What ends with it has no part in the run: nothing is lost,
    and a move that goes on starts another attempt."""

    def __init__(self, attempt: Attempt):
        self._path = attempt.files.lease
        self.seconds = float(os.environ.get("MIDSTREAM_STANDBY_SECONDS") or SECONDS)
        self._renewed = self._looked = time.monotonic()
        self._seen = self._mark()

    def over(self) -> bool:
        """Whether nobody has renewed it in time."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return False
        self._looked = now
        mark = self._mark()
        if mark != self._seen:
            self._seen, self._renewed = mark, now
        if now - self._renewed < self.seconds:
            return False
        log.error("nobody has asked for this attempt for %.0f s: it ends, and frees its devices", self.seconds)
        return True

    def _mark(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_mtime_ns, found.st_ino
