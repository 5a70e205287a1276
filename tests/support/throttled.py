"""Processes that are slow, as if their accelerators were."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Sequence


class Throttled:
    """Suspend processes periodically, all at once."""

    def __init__(self, pids: Sequence[int], running: float, stopped: float) -> None:
        self._pids, self._running, self._stopped = pids, running, stopped
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Throttled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._over.is_set():
            self._send(signal.SIGSTOP)
            self._over.wait(self._stopped)
            self._send(signal.SIGCONT)
            self._over.wait(self._running)

    def _send(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(pid, number)
