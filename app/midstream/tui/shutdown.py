"""Ends the terminal UI when it is told to by a signal, or its terminal is gone, however stuck the screen is."""

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
CLOSE_TIMEOUT = 5.0  # seconds that the screen may take to close; a terminal that is gone can hold it up for good
POLL = 0.5  # seconds between two looks at the terminal


class Ending:
    """Context manager around an app that runs in the main thread. The exit code is 128 plus the signal's number, that
    of SIGHUP where the terminal is gone."""

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._deadline: threading.Timer | None = None

    def __enter__(self) -> Ending:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
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
        poll.register(terminal, 0)  # errors and hang-ups alone
        while not self._over.wait(POLL):
            if poll.poll(0):
                self._end(128 + signal.SIGHUP)
                return

    def _end(self, code: int) -> None:
        """Close the screen; where that is held up, end the process all the same."""
        if self._deadline is not None:
            return
        self._deadline = threading.Timer(CLOSE_TIMEOUT, os._exit, (code,))
        self._deadline.daemon = True
        self._deadline.start()
        loop = self._app._loop
        if loop is not None:
            loop.call_soon_threadsafe(lambda: self._app.exit(return_code=code))
