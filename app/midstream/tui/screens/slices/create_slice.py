"""Have a target's slice made: asked with its price and its name, done in the terminal, where Ctrl-C takes it back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.migrate.model import Request
from midstream.printable import printable
from midstream.tui.screens.dialogs.confirm import ConfirmScreen

if TYPE_CHECKING:
    from midstream.tui.app import MidstreamApp


def ask(app: MidstreamApp, target: str, price: str, move: Request | None = None) -> None:
    """Ask, and step aside while it is made. The app begins anew then, with the slice's workers among its hosts, and the
    wizard goes on with the ``move`` that it was made for."""

    def answered(yes: bool | None) -> None:
        if yes:
            _make(app, target, move)

    lines = (
        f"{target} is not there. It would be asked for: {price}.",
        "It costs money from the moment it is there until midstream --delete gives it back.",
        "If it does not come, or Ctrl-C lets it go, nothing of it is left.",
    )
    app.push_screen(ConfirmScreen(f"Have {target} made", lines, word=target), answered)


def _make(app: MidstreamApp, target: str, move: Request | None) -> None:
    made = False
    try:
        with app.suspend():
            try:
                app.actions.create(target)
                made = True
            except MidstreamError as error:
                print(printable(f"midstream: {error}"), file=sys.stderr)
                print("midstream: press enter to go back", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        app.notify(
            f"this terminal cannot be given away: midstream --launch ... --on {target} --yes", severity="warning"
        )
    if made:
        app.begin_anew(move)
