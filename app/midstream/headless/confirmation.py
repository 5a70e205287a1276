"""Questions of the headless modes to a user at a terminal."""

from __future__ import annotations

import sys

from midstream.output import Output
from midstream.printable import printable


def can_ask(output: Output) -> bool:
    """Return True if stdin and stderr are a terminal, and no program reads the output."""
    return not output.as_json and sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str, output: Output) -> bool:
    """Return the answer to a yes-or-no question; False without a terminal."""
    if not can_ask(output):
        return False
    sys.stderr.write(printable(f"{question} [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
