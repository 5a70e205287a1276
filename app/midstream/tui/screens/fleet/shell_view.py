"""A shell on a host, which replaces the screen until it exits."""

from __future__ import annotations

import sys

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.tui.screens.base import MidstreamScreen

SSH_FAILED = 255  # exit code of ssh for its own errors


def open_on(screen: MidstreamScreen, host: str) -> None:
    """Suspend the screen while a shell on the host runs."""
    actions = screen.midstream.actions
    try:
        with screen.app.suspend():
            print(f"midstream: shell on {host}; exit returns to the screen", file=sys.stderr)
            if actions.shell(host) == SSH_FAILED:
                # Redrawing the screen would hide the error of ssh.
                print("midstream: press enter to return", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        screen.notify("this terminal cannot be suspended: use ssh in another one", severity="warning")
    except MidstreamError as error:
        screen.show_error(error)
