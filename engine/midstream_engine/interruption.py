"""Ctrl-C in the commands besides training: one line and an exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from midstream_core import records


def interruptible(main: Callable[[], int]) -> int:
    """Return the exit code of a command's ``main``; 128 + SIGINT if Ctrl-C ends it.

    After Ctrl-C one line is printed on stderr.
    """
    try:
        return main()
    except KeyboardInterrupt:
        print("midstream: interrupted", file=sys.stderr)
        return records.EXIT_SIGNAL + signal.SIGINT
