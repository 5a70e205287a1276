"""Name, tags and note of a run: a form, and undo of the last edit."""

from __future__ import annotations

from collections.abc import Callable

from midstream.errors import MidstreamError, UsageError
from midstream.listing.labels import Label, Labels
from midstream.tui.screens.base import MidstreamScreen
from midstream.tui.screens.dialogs.form import FormField, FormScreen, Values


def ask(screen: MidstreamScreen, run_id: str) -> None:
    """Prompt for name, tags and note of a run."""
    label = screen.midstream.facts.labels.of(run_id)
    fields = (
        FormField("name", "Name", label.name, f"none: the run is shown as {run_id}"),
        FormField("tags", "Tags", ", ".join(label.tags), "none but those of its tracker"),
        FormField("note", "Note", label.note, "none"),
    )

    def read(values: Values) -> Label:
        return Label.read(values["name"], values["tags"], values["note"])

    def check(values: Values) -> str:
        try:
            read(values)
        except UsageError as error:
            return error.message
        return ""

    def answered(values: Values | None) -> None:
        if values is not None and read(values) != label:
            _change(screen, lambda: screen.midstream.actions.edit_label(run_id, read(values)))

    screen.app.push_screen(FormScreen(f"Name, tags and note of {run_id}", fields, check, "saves"), answered)


def undo(screen: MidstreamScreen) -> None:
    """Undo the last edit of a label, of whichever run it was."""
    _change(screen, screen.midstream.actions.undo_label)


def _change(screen: MidstreamScreen, change: Callable[[], tuple[Labels, str]]) -> None:
    try:
        labels, words = change()
    except MidstreamError as error:
        screen.show_error(error)
        return
    screen.midstream.facts.labels = labels
    screen.notify(words, markup=False)
    screen.refresh_state()
