"""Report of a run, and export of a checkpoint.

The user chooses a format and enters a path, then it is written in the background.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial

from midstream.operations.export_checkpoint import default_output
from midstream.operations.report import check_report_path
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.screens.dialogs.enter_text import EnterTextScreen
from midstream.tui.widgets.table import Column, Row, Rows
from midstream.watch.snapshot import RunView
from midstream_core.export_formats import EXPORT_FORMATS

_REPORT_WORDS = (
    "One page: curve, lineage, migrations, certificates, cost and config.",
    "A browser shows it, also without a network.",
)


def ask_report(screen: MidstreamScreen, run_id: str) -> None:
    """Prompt for a file and write the report of a run to it."""

    def entered(text: str | None) -> None:
        if text is not None:
            snapshot, path = screen.screen_state.snapshot, check_report_path(text)
            screen.notify(f"writing the report of {run_id} ...", markup=False)
            screen.in_background(lambda: _toast(screen, screen.midstream.actions.report(snapshot, run_id, path)))

    screen.app.push_screen(EnterTextScreen("Report", _REPORT_WORDS, f"{run_id}.html", check_report_path), entered)


def ask_export(screen: MidstreamScreen, run: RunView, checkpoint: str) -> None:
    """Prompt for a format and a directory, and export a checkpoint of a run to it."""
    formats = list(EXPORT_FORMATS)
    rows = Rows(formats, lambda number: Row(formats[number], (formats[number], EXPORT_FORMATS[formats[number]])))

    def chosen(form: Hashable) -> None:
        if form is not None:
            _ask_output(screen, run, checkpoint, str(form))

    columns = (Column("FORMAT"), Column("WHAT IT HAS"))
    screen.app.push_screen(ChooseScreen(f"Export {checkpoint} as", columns, rows, selected=formats[0]), chosen)


def _ask_output(screen: MidstreamScreen, run: RunView, checkpoint: str, form: str) -> None:
    actions = screen.midstream.actions
    words = (f"{form}: {EXPORT_FORMATS[form]}.", f"HOST:PATH of a new directory on {run.host}.")

    def entered(text: str | None) -> None:
        if text is not None:
            work = partial(actions.export, run, checkpoint, form, text, partial(_toast, screen))
            screen.in_background(lambda: _toast(screen, work()))

    output, check = default_output(run, checkpoint, form), partial(actions.check_export, run)
    screen.app.push_screen(EnterTextScreen(f"Export {checkpoint}", words, output, check), entered)


def _toast(screen: MidstreamScreen, words: str) -> None:
    screen.app.call_later(screen.app.notify, words, markup=False)
