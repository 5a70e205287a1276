"""Alerts at the terminal: the bell, and a desktop notification by escape sequence.

OSC 99 is kitty's, OSC 9 that of iTerm2, WezTerm and Ghostty, OSC 777 that of rxvt, foot and VTE. A terminal that
supports none of them ignores it. In tmux the sequence is passed through where `allow-passthrough` permits it; the bell
always reaches tmux.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping

from midstream.printable import printable

SETTING = "MIDSTREAM_NOTIFY"
AUTO, BELL, OSC_9, OSC_99, OSC_777, OFF = "auto", "bell", "osc9", "osc99", "osc777", "off"
BEL, ESC = "\a", "\x1b"
LONGEST = 200  # characters of a text
TMUX_TIMEOUT = 2.0  # seconds
WITHOUT_OSC = ("linux", "dumb", "")  # terminals that may print an unknown sequence
PASSED_THROUGH = ("on", "all", "1", "2")  # as numbers up to tmux 3.3
_TMUX_FACTS = "#{allow-passthrough} #{client_termname} #{client_termtype}"


def alert(text: str, environment: Mapping[str, str] = os.environ, tmux: Callable[[], str] | None = None) -> str:
    """Return what is written to the terminal for an alert.

    May call tmux, which takes some milliseconds.

    Args:
        text: One line for the user.
        environment: `$MIDSTREAM_NOTIFY` is auto, bell, osc9, osc99, osc777 or off; anything else counts as auto.
        tmux: Returns whether tmux passes sequences through, and the name and type of the terminal that it runs in.
    """
    setting = environment.get(SETTING, AUTO).strip().lower()
    if setting == OFF:
        return ""
    in_tmux = bool(environment.get("TMUX"))
    allowed, terminal = (tmux or _ask_tmux)().partition(" ")[::2] if in_tmux else ("on", _terminal(environment))
    kind = setting if setting in (BELL, OSC_9, OSC_99, OSC_777) else _kind_of(terminal)
    if kind == BELL or allowed not in PASSED_THROUGH:
        return BEL
    body = printable(text)[:LONGEST]
    sequence = {
        OSC_9: f"{ESC}]9;{body}{BEL}",
        OSC_99: f"{ESC}]99;i=midstream:d=0;midstream{ESC}\\{ESC}]99;i=midstream:d=1:p=body;{body}{ESC}\\",
        OSC_777: f"{ESC}]777;notify;midstream;{body.replace(';', ',')}{BEL}",
    }[kind]
    if in_tmux:
        sequence = f"{ESC}Ptmux;{sequence.replace(ESC, ESC * 2)}{ESC}\\"
    return BEL + sequence


def _terminal(environment: Mapping[str, str]) -> str:
    vte = "vte" if environment.get("VTE_VERSION") else ""
    return f"{environment.get('TERM', '')} {environment.get('TERM_PROGRAM', '')} {vte}"


def _kind_of(terminal: str) -> str:
    words = terminal.lower().split()
    if not words or words[0] in WITHOUT_OSC:
        return BELL
    if any("kitty" in word for word in words):
        return OSC_99
    return OSC_777 if any(word.startswith(("rxvt", "foot", "vte")) for word in words) else OSC_9


def _ask_tmux() -> str:
    try:
        done = subprocess.run(
            ["tmux", "display-message", "-p", _TMUX_FACTS], capture_output=True, text=True, timeout=TMUX_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
