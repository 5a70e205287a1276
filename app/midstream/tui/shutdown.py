"""Shutdown of the terminal UI on a signal or when its terminal closes.

A stalled screen does not prevent it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import Any

from textual.app import App

SIGNALS = (signal.SIGTERM, signal.SIGHUP)
CLOSE_TIMEOUT = 5.0  # seconds that the screen may take to close; writing to a closed terminal can block forever
POLL_INTERVAL = 0.5  # seconds between checks of the terminal


class Shutdown:
    """Context manager around an application that runs in the main thread.

    The exit code is 128 plus the signal's number, or that of SIGHUP where the terminal has closed.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._deadline: threading.Timer | None = None

    def __enter__(self) -> Shutdown:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # ignored under nohup
                self._before[number] = signal.signal(number, self._signalled)
        if sys.stdin.isatty():
            threading.Thread(target=self._watch, args=(sys.stdin.fileno(),), name="terminal", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._deadline is not None:
            self._deadline.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        self._end(128 + number)

    def _watch(self, terminal: int) -> None:
        poll = select.poll()
        poll.register(terminal, 0)  # reports errors and hang-ups only
        while not self._over.wait(POLL_INTERVAL):
            if poll.poll(0):
                self._end(128 + signal.SIGHUP)
                return

    def _end(self, code: int) -> None:
        """Close the screen; exit the process if that takes more than `CLOSE_TIMEOUT`."""
        if self._deadline is not None:
            return
        self._deadline = threading.Timer(CLOSE_TIMEOUT, os._exit, (code,))
        self._deadline.daemon = True
        self._deadline.start()
        loop = self._app._loop  # private: Textual has no public access to the loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: self._app.exit(return_code=code))
