"""Messages of the app to a program on a host: JSON objects on stdin, one a line.

The program ends when stdin closes. Where the app sends a line every few seconds, it also ends when none arrives: a
connection that was lost without an end of file would otherwise keep it running for hours.
"""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
from typing import Any, Dict, Optional

IDLE_TIMEOUT = 30.0  # seconds without a byte after which a connection counts as lost
GRACE = 1.0  # seconds to clean up after the end of stdin


Line = Dict[str, Any]  # of the app, which sends what each program reads


class StdinLines:
    """Lines of stdin, read in a thread.

    At the end of stdin ``last`` is added, so that the program can clean up, and the process ends ``GRACE`` seconds
    later; without ``last`` it ends immediately. The thread reads the descriptor, because the lock of ``sys.stdin``
    would delay the interpreter's exit.
    """

    def __init__(self, idle_timeout: Optional[float] = None, last: Optional[Line] = None) -> None:
        self._queue: "queue.Queue[Line]" = queue.Queue()
        self._idle_timeout = idle_timeout
        self._last = last
        threading.Thread(target=self._read, daemon=True).start()

    def get(self, timeout: Optional[float] = None) -> Optional[Line]:
        """Return the next object, or None after ``timeout`` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def _read(self) -> None:
        pending = b""
        while True:
            if self._idle_timeout is not None and not select.select([0], [], [], self._idle_timeout)[0]:
                break
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self._queue.put(json.loads(line))
        if self._last is not None:
            self._queue.put(self._last)
            time.sleep(GRACE)
        os._exit(1)
