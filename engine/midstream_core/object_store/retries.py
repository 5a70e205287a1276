"""Repeat requests after transient failures."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

RETRY_TIMEOUT = 300.0  # seconds for which a request is repeated while the service is busy
FIRST_PAUSE, MAX_PAUSE = 0.25, 16.0  # seconds

T = TypeVar("T")


def repeated(once: Callable[[], T], is_transient: Callable[[Exception], bool]) -> T:
    """Return the result of ``once``, which is called again after transient failures.

    The pauses double, and each is drawn at random up to its length, so that many clients do not return together. The
    error that is raised after `RETRY_TIMEOUT` is that of the last call.
    """
    ends, pause = time.monotonic() + RETRY_TIMEOUT, FIRST_PAUSE
    while True:
        try:
            return once()
        except Exception as error:
            if not is_transient(error) or time.monotonic() + pause > ends:
                raise
        time.sleep(random.uniform(pause / 2, pause))
        pause = min(2 * pause, MAX_PAUSE)
