"""Creation of a target, confirmed with its price, in the terminal.

Ctrl-C cancels it there.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from midstream.errors import MidstreamError
from midstream.migrate.journal.request import Request
from midstream.printable import printable
from midstream.tui.base_app import BaseApp
from midstream.tui.screens.dialogs.confirm import ConfirmScreen

if TYPE_CHECKING:
    from midstream.operations.create_target import CreatableTarget


def ask(app: BaseApp, missing: CreatableTarget, request: Request | None = None) -> None:
    """Confirm, then create the target with the screen suspended.

    The application then restarts with the slice's workers among its hosts, and the wizard opens with ``request``.
    """

    def answered(yes: bool | None) -> None:
        if yes:
            _create(app, missing, request)

    lines = (
        f"{missing.question}.",
        f"It {missing.lasts}.",
        "If creation fails, or Ctrl-C cancels it, nothing remains.",
    )
    app.push_screen(ConfirmScreen(f"Create {missing.target}", lines, word=missing.target), answered)


def _create(app: BaseApp, missing: CreatableTarget, request: Request | None) -> None:
    created = False
    try:
        with app.suspend():
            try:
                app.actions.create(missing, request.run_id if request is not None else "")
                created = True
            except MidstreamError as error:
                print(printable(f"midstream: {error}"), file=sys.stderr)
                print("midstream: press enter to return", file=sys.stderr)
                sys.stdin.readline()
    except SuspendNotSupported:
        app.notify(
            f"this terminal cannot be suspended: use midstream --launch CONFIG --on {missing.target} --yes",
            severity="warning",
        )
    if created:
        app.restart(request)
