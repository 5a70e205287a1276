"""Signals to the engine: SIGUSR1 saves; SIGTERM, SIGINT and SIGHUP save and stop.

The system's handler writes the number of each signal to a pipe, and a thread reads it. A handler in Python would run in
the main thread, which is in C++ for minutes while jax compiles or restores.

Standard library only: it is installed before the packages that take time to import.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from midstream_core import records

log = logging.getLogger(__name__)
STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
EXIT_TIMEOUT = 1.5  # seconds from a signal to the exit, where nothing has to be saved
OPEN_TIMEOUT = 1.2  # seconds of these for a launched process to open its attempt, whose status the launcher reads
# A SIGINT within this many seconds of the first request to stop is the same request: from a terminal, or from SLURM,
# both the supervisor, which forwards it, and the engine get it.
SAME_REQUEST = 1.0


class Signals:
    """Counter of requests to save and to stop, for the boundaries between updates.

    Elsewhere a stop ends the process.

    The process begins without an update to save, so a stop ends it at once. `answer_at_boundaries` is called when the
    first boundary is reached. From then on a SIGINT that repeats an earlier request to stop ends the process at once,
    without saving.
    """

    def __init__(self) -> None:
        self.saves = 0
        self.stops = 0
        self._first: signal.Signals | None = None  # request to stop
        self._first_time = 0.0
        self._at_boundaries = False
        self._record: Callable[[str, bool], int] | None = None
        self._opening = False  # the status is about to be written
        self._opened = threading.Event()  # `_record` is set
        self._deciding = threading.Lock()
        self._writing = -1

    @property
    def first_stop(self) -> str:
        """Name of the first signal that requested a stop; empty without one."""
        return self._first.name if self._first is not None else ""

    def install(self) -> None:
        """Install the handlers and start the thread. Main thread only.

        SIGINT and SIGHUP stay ignored where they are, as under nohup.
        """
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in (signal.SIGUSR1, *STOPS):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _count_on_the_thread)
        threading.Thread(target=self._read, name="signals", args=(reading,), daemon=True).start()

    def ignore(self) -> None:
        """Ignore the signals from now on.

        The interpreter restores the default handlers at exit, which would kill a process that has finished its work.
        """
        for number in (signal.SIGUSR1, *STOPS):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(self._writing)  # ends the thread

    def expect_record(self) -> None:
        """Let a signal wait for `record_end_with`: the status is written before it."""
        self._opening = True

    def record_end_with(self, record: Callable[[str, bool], int]) -> None:
        """Call ``record`` before a signal ends the process at once.

        The signal thread calls ``record`` with the signal's name, and with whether updates may be lost that should have
        been saved. ``record`` returns the exit code.
        """
        self._record = record
        self._opened.set()

    def answer_at_boundaries(self) -> None:
        """From now on a request to stop is answered at the next boundary between updates."""
        if not self._at_boundaries:
            with self._deciding:
                self._at_boundaries = True

    def answer_at_once(self) -> None:
        """Let a request to stop end the process from now on.

        A request that no boundary has answered ends the process now.
        """
        with self._deciding:
            self._at_boundaries = False
            if self._first is not None:
                self._end(self._first, lost=False)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            while numbers := pipe.read(64):
                for number in numbers:
                    if number in (signal.SIGUSR1, *STOPS):  # others have a handler of a library, or no name
                        self._take(signal.Signals(number))

    def _take(self, number: signal.Signals) -> None:
        if number == signal.SIGUSR1:
            self.saves += 1
            return
        with self._deciding:
            if not self._at_boundaries:
                self._end(number, lost=False)
            now = time.monotonic()
            if self._first is None:
                self._first, self._first_time = number, now
                log.info(
                    "%s: saves at the next step and stops; a second SIGINT ends at once, without saving", number.name
                )
            elif number == signal.SIGINT and now - self._first_time > SAME_REQUEST:
                self._end(number, lost=True)
            self.stops += 1

    def _end(self, number: signal.Signals, *, lost: bool) -> None:
        """Record the end and exit, within two seconds even where the disk does not answer."""
        code = records.EXIT_SIGNAL + number
        timer = threading.Timer(EXIT_TIMEOUT, os._exit, (code,))
        timer.daemon = True
        timer.start()
        try:
            if self._opening or os.environ.get("MIDSTREAM_ATTEMPT"):
                self._opened.wait(OPEN_TIMEOUT)
            if self._record is None:
                print(f"midstream: ended by {number.name} before the attempt began", file=sys.stderr, flush=True)
            else:
                code = self._record(number.name, lost)
        except OSError as error:
            log.error("the end is not recorded: %s", error)
        finally:
            records.remove_unfinished_files()  # of the main thread, which may be anywhere
            os._exit(code)


def _count_on_the_thread(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the system's part of the handler has written the number to the pipe."""
