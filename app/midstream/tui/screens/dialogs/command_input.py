"""The input of the command line, with the commands that it may be completed to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from midstream.errors import UsageError
from midstream.tui import commands
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text

MAX_SHOWN = 6  # completions


class CommandInputScreen(ModalScreen[Callable[[], object]]):
    """Returns the action of the command; None on esc."""

    BINDINGS: ClassVar = [
        Binding("escape", "dismiss(None)", "Close"),
        Binding("tab", "complete", "Complete", priority=True),
    ]

    def __init__(self, complete: Callable[[str], Sequence[str]], read: Callable[[str], Callable[[], object]]) -> None:
        """Create the dialog.

        Args:
            complete: Returns the texts that a text may be completed to.
            read: Returns the action of a command, or raises UsageError.
        """
        super().__init__()
        self._complete = complete
        self._read = read

    def compose(self) -> ComposeResult:
        with Vertical(id="command-line"):
            yield Static(id="completions")
            yield Input(placeholder="runs, run NAME, host NAME, theme NAME   tab completes", compact=True)

    def on_mount(self) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        completions = self._complete(text)
        words = {word.name: word for word in commands.WORDS}
        shown = Text()
        for completion in completions[:MAX_SHOWN]:
            word = words.get(completion.strip())
            shown.append(f"  {completion.rstrip()}", palette.TEXT)
            if word is not None:
                shown.append(f"{' ' * bool(word.argument)}{word.argument}  {word.description}", palette.DIM)
            shown.append("\n")
        if len(completions) > MAX_SHOWN:
            shown.append(f"  and {len(completions) - MAX_SHOWN} more", palette.DIM)
        shown.rstrip()
        self.query_one("#completions", Static).update(shown)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._show(event.value)

    def action_complete(self) -> None:
        """Complete to what all completions begin with, or else to the first one."""
        box = self.query_one(Input)
        completions = self._complete(box.value)
        common = _common_beginning(completions)
        if completions:
            box.value = common if len(common) > len(box.value.lstrip()) else completions[0]
            box.cursor_position = len(box.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if not event.value.strip():
            self.dismiss(None)
            return
        try:
            action = self._read(event.value)
        except UsageError as error:
            words = error.message + (f" ({error.hint})" if error.hint else "")
            self.query_one("#completions", Static).update(Text(f"  {words}", palette.BAD))
            return
        self.dismiss(action)


def _common_beginning(texts: Sequence[str]) -> str:
    first, last = min(texts, default=""), max(texts, default="")
    length = next((at for at, (own, other) in enumerate(zip(first, last, strict=False)) if own != other), len(first))
    return first[:length]
