"""Background of the terminal: whether it is light, by its own answer (OSC 11)."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Mapping

ANSWER_TIMEOUT = 0.15  # seconds; the second question is one that every terminal answers at once
QUESTION = b"\x1b]11;?\x1b\\\x1b[c"  # the colour of the background, then the terminal's attributes
_COLOUR = re.compile(rb"\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_ATTRIBUTES = re.compile(rb"\x1b\[\?[\d;]*c")
_LIGHT_NUMBERS = ("7", "15")  # of $COLORFGBG, which rxvt and Konsole set


def is_light(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal has a light background; False where it does not say."""
    answer = _ask()
    if (light := light_of(answer)) is not None:
        return light
    return environment.get("COLORFGBG", "").rpartition(";")[2] in _LIGHT_NUMBERS


def light_of(answer: bytes) -> bool | None:
    """Return whether the colour in a terminal's answer is light; None without one."""
    match = _COLOUR.search(answer)
    if match is None:
        return None
    red, green, blue = (int(digits, 16) / (16 ** len(digits) - 1) for digits in match.groups())
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5


def _ask() -> bytes:
    """Return what the terminal answers; empty without an answer in time."""
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return b""
    import termios
    import tty

    descriptor, answer = sys.stdin.fileno(), b""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        return b""
    try:
        tty.setcbreak(descriptor)
        os.write(sys.stderr.fileno(), QUESTION)
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while _ATTRIBUTES.search(answer) is None and (remaining := deadline - time.monotonic()) > 0:
            if not select.select([descriptor], [], [], remaining)[0]:
                break
            answer += os.read(descriptor, 1024)
    except OSError:
        return b""
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
    return answer
