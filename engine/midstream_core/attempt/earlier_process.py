"""Process of an earlier start of the same attempt, as before a requeue.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import time

from midstream_core import records

EXIT_TIMEOUT = 30.0  # seconds for it to exit, as after a signal
POLL_INTERVAL = 0.1  # seconds


def running_earlier(path: str, timeout: float = EXIT_TIMEOUT) -> str:
    """Return the earlier process that still runs here after ``timeout`` seconds.

    ``path``: the status of the process. Empty where none is known to run here: one on another machine is superseded by
    the start number.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            status = records.Status.read_or_none(path)
        except (OSError, records.RecordError):
            return ""  # the start that follows writes another
        if status is None or status.pid == os.getpid() or not records.is_running(status.identity):
            return ""
        if time.monotonic() >= deadline:
            return (
                f"attempt {status.attempt} of {status.run_id} runs already: process {status.pid} writes its log and "
                f"metrics (hint: stop it first: kill {status.pid})"
            )
        time.sleep(POLL_INTERVAL)
