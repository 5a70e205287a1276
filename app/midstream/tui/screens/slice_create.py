"""Have a target's slice made: asked with its price and its name, done in the terminal, where Ctrl-C takes it back."""

from __future__ import annotations

import sys

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.confirm import ConfirmScreen
from midstream.tui.screens.setup import RELOAD


def ask(screen: MidstreamScreen, target: str, price: str) -> None:
    """Ask, and step aside while it is made. The app begins anew then, with the slice's workers among its hosts."""

    def answered(yes: bool | None) -> None:
        if yes and not screen.refused():
            _make(screen, target)

    lines = (
        f"{target} is not there. It would be asked for: {price}.",
        "It costs money from the moment it is there until midstream --delete gives it back.",
        "If it does not come, or Ctrl-C lets it go, nothing of it is left.",
    )
    screen.app.push_screen(ConfirmScreen(f"Have {target} made", lines, word=target), answered)


def _make(screen: MidstreamScreen, target: str) -> None:
    made = False
    try:
        with screen.app.suspend():
            try:
                screen.midstream.actions.create(target)
                made = True
            except MidstreamError as error:
                print(f"midstream: {error}", file=sys.stderr)
                print("midstream: press enter to go back", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        screen.notify(
            f"this terminal cannot be given away: midstream --launch ... --on {target} --yes", severity="warning"
        )
    if made:
        screen.app.exit(RELOAD, return_code=RELOAD)
