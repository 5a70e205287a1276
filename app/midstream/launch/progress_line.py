"""A command's progress: one redrawn line at a terminal, else sparse lines."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TextIO

from midstream.install.reporter import Reporter, SparseReporter, state_line
from midstream.output import Output
from midstream.printable import printable

REDRAW_INTERVAL = 1.0  # seconds: the time that is left counts down
_CLEAR = "\r\x1b[K"


def reporter(output: Output, *, verbose: bool = False) -> Reporter:
    """Return the reporter for a command's messages: a line that is redrawn, or lines."""
    if verbose or not sys.stderr.isatty():
        return SparseReporter(output.message, verbose=verbose)
    return ProgressLine(sys.stderr)


class ProgressLine(Reporter):
    """The states of all operations in the terminal's last line.

    Lines that stay are printed above it.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._states: dict[str, tuple[str, float | None]] = {}  # what -> state, and the time at which it ends
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._drawing: threading.Thread | None = None

    def __call__(self, line: str) -> None:
        with self._lock:
            self._terminal.write(f"{_CLEAR if self._states else ''}{printable(line)}\n")
            self._draw()

    def update(self, what: str, state: str, seconds_left: float | None = None) -> None:
        with self._lock:
            self._states[what] = state, None if seconds_left is None else time.monotonic() + seconds_left
            if self._drawing is None:
                self._drawing = threading.Thread(target=self._redraw, daemon=True, name="progress line")
                self._drawing.start()
            self._draw()

    def end(self, what: str) -> None:
        with self._lock:
            if self._states.pop(what, None) is not None:
                self._terminal.write(_CLEAR)
                self._draw()
                self._changed.notify_all()

    def _draw(self) -> None:
        now = time.monotonic()
        if self._states:
            lines = [
                state_line(what, state, ends - now if ends is not None and ends > now else None)
                for what, (state, ends) in self._states.items()
            ]
            columns = shutil.get_terminal_size().columns
            self._terminal.write(_CLEAR + printable("; ".join(lines))[: columns - 1])
        self._terminal.flush()

    def _redraw(self) -> None:
        with self._lock:
            while self._states:
                self._changed.wait(REDRAW_INTERVAL)
                self._draw()
            self._drawing = None
