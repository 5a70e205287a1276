"""Values of the runs' configurations as columns of the list of runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from midstream.listing.column import Column
from midstream.listing.fleet_fields import CONFIG
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose_many import ChooseManyScreen
from midstream.tui.widgets.table import Row
from midstream.watch import resolved_config
from midstream.watch.snapshot import RunView

TITLE = "Values of the configuration"


def choose(screen: MidstreamScreen, run: RunView, shown: list[str], chosen: Callable[[list[str]], object]) -> None:
    """Choose among the values that the configuration of ``run`` has.

    Args:
        screen: The screen with the list.
        run: Run whose configuration is offered; the columns are of all runs.
        shown: Columns that the list has of configurations.
        chosen: Called with the names of the chosen columns, which may be none.
    """
    actions = screen.midstream.actions

    def work() -> None:
        flat = resolved_config.fields(actions.config(run, run.attempt))
        screen.app.call_later(partial(_ask, screen, flat, shown, chosen))

    screen.in_background(work)


def _ask(
    screen: MidstreamScreen, flat: dict[str, object], shown: list[str], chosen: Callable[[list[str]], object]
) -> None:
    names = {f"{CONFIG}{name}": value for name, value in flat.items()}
    rows = [Row(name, (name, str(value))) for name, value in {**dict.fromkeys(shown, ""), **names}.items()]
    columns = (Column("NAME", widest=60, name=True), Column("HERE", widest=60))

    def answered(marked: list[str] | None) -> None:
        if marked is not None:
            chosen(marked)

    screen.app.push_screen(ChooseManyScreen(TITLE, columns, rows, shown), answered)
