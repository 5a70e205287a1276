"""A shell on a host, which replaces the screen until it exits."""

from __future__ import annotations

import sys
import time

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.tui.screens.base import MidstreamScreen

SSH_FAILED = 255  # exit code of ssh for its own errors
EARLY = 3.0  # seconds in which a shell that fails has been of no use


def open_on(screen: MidstreamScreen, host: str) -> None:
    """Suspend the screen while a shell on the host runs."""
    actions = screen.midstream.actions
    try:
        with screen.app.suspend():
            print(f"midstream: shell on {host}; exit returns to the screen", file=sys.stderr)
            began = time.monotonic()
            code = actions.shell(host)
            early = code != 0 and time.monotonic() - began < EARLY
            if early or code == SSH_FAILED:
                # Redrawing the screen would hide the error of ssh, or what a login that is refused has printed.
                ended = f"the shell ended at once with exit code {code}; " if early and code != SSH_FAILED else ""
                print(f"midstream: {ended}press enter to return", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        screen.notify("this terminal cannot be suspended: use ssh in another one", severity="warning")
    except MidstreamError as error:
        screen.show_error(error)
