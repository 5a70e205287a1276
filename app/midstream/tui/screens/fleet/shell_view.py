"""A shell on a host, in the place of the screen for as long as it lasts."""

from __future__ import annotations

import sys

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.tui.screens.base import MidstreamScreen

FAILED = 255  # what ssh itself ends with


def open_on(screen: MidstreamScreen, host: str) -> None:
    """Step aside, and come back when the shell ends."""
    actions = screen.midstream.actions
    try:
        with screen.app.suspend():
            print(f"midstream: a shell on {host}; its end leads back", file=sys.stderr)
            if actions.shell(host) == FAILED:
                # What ssh said is gone once the screen is drawn.
                print("midstream: press enter to go back", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        screen.notify("this terminal cannot be given away: use ssh in another", severity="warning")
    except MidstreamError as error:
        screen.say(error)
