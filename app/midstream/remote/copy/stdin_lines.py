"""The operator's words to a program that runs here: JSON objects, a line each, on stdin.

A program that listens ends with its operator: when stdin closes, and, where the operator promised to say something
every few seconds, when nothing was heard for long. A link that died without a word would otherwise keep it for hours.
"""

from __future__ import annotations

import json
import os
import queue
import select
import threading
import time
from typing import Any, Dict, Optional

SILENCE = 30.0  # seconds without a word, or a byte, after which the other side is taken for gone
GRACE = 1.0


class Lines:
    """Reads in a thread of its own. When the operator has gone, ``last`` is put at the end, so that the program may
    tidy up, and the process ends ``GRACE`` seconds later; without it, at once. The descriptor is read, not
    ``sys.stdin``: its lock would hold up the interpreter's end."""

    def __init__(self, silence: Optional[float] = None, last: Optional[Dict[str, Any]] = None):
        self._queue: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        self._silence = silence
        self._last = last
        threading.Thread(target=self._read, daemon=True).start()

    def get(self, timeout: Optional[float] = None) -> Optional[Dict[str, Any]]:
        """The next object, or None after ``timeout`` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return None

    def _read(self) -> None:
        pending = b""
        while True:
            if self._silence is not None and not select.select([0], [], [], self._silence)[0]:
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
