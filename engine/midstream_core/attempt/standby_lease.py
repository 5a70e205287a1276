"""Lease of a standby or replica, which the migration renews.

Standard library only.
"""

from __future__ import annotations

import logging
import os
import time

log = logging.getLogger(__name__)
SECONDS = 3600.0  # bounds the cost of a forgotten standby; $MIDSTREAM_STANDBY_SECONDS overrides it
POLL_INTERVAL = 1.0  # seconds


class Lease:
    """Lease that is renewed by rewriting the attempt's ``lease`` file.

    The attempt exits when it expires.

    Time is counted by this process's clock from when it reads the change: clocks of different machines are not
    compared. An attempt with a lease is not part of the run, so its exit loses nothing, and a migration that continues
    starts another attempt.
    """

    def __init__(self, path: str, seconds: float = SECONDS) -> None:
        """Begin with the file at ``path``, which need not exist.

        ``seconds``: without a renewal, after which the lease has expired.
        """
        self._path = path
        self.seconds = float(os.environ.get("MIDSTREAM_STANDBY_SECONDS") or seconds)
        self._renewed = self._looked = time.monotonic()
        self._version: tuple[int, int] | None = None
        self._version = self._read_version()
        self._over = False

    def over(self) -> bool:
        """Report whether the lease has expired, as of the last look at the file."""
        now = time.monotonic()
        if now - self._looked < POLL_INTERVAL:
            return self._over
        self._looked = now
        version = self._read_version()
        if version != self._version:
            self._version, self._renewed = version, now
        before, self._over = self._over, now - self._renewed >= self.seconds
        if self._over and not before:
            log.error("the lease was not renewed for %.0f s: this attempt exits and frees its devices", self.seconds)
        return self._over

    def _read_version(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:  # the disk does not answer: the file is looked at again
            log.debug("%s", error)
            return self._version
        return status.st_mtime_ns, status.st_ino
