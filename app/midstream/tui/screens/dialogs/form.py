"""Dialog with fields to fill in."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.suggester import SuggestFromList
from textual.widgets import Input, Static

from midstream.tui.base_app import app_of
from midstream.tui.screens.dialogs.choose import ChooseScreen
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule
from midstream.tui.widgets.table import Column, Row

Values = Mapping[str, str]


@dataclass(frozen=True)
class FormField:
    """Field: its name, label, first value, meaning of an empty value, and choices."""

    name: str
    label: str
    value: str = ""
    empty: str = ""
    choices: Sequence[str] = ()


class FormScreen(ModalScreen[Values]):
    """Returns the stripped values by name; None on esc.

    ``check`` returns what is wrong with them, or an empty string.
    """

    BINDINGS: ClassVar = [
        ("escape", "dismiss(None)", "Cancel"),
        # With priority, the application moves at once: the keys after them would else still reach the field before.
        Binding("up,shift+tab", "move(-1)", "Previous field", priority=True),
        Binding("down,tab", "move(1)", "Next field", priority=True),
        ("ctrl+o", "choose", "Choose"),
    ]
    DEFAULT_CSS = """
    FormScreen Horizontal { height: 1; }
    FormScreen #dialog .label { width: 20; }
    FormScreen Input { width: 1fr; height: 1; border: none; padding: 0; margin: 0 1 0 0; background: $panel; }
    FormScreen #hint { height: auto; padding: 1 1 0 1; }
    """

    def __init__(self, title: str, fields: Sequence[FormField], check: Callable[[Values], str], action: str) -> None:
        super().__init__()
        self._heading = title
        self._fields = tuple(fields)
        self._check = check
        self._action = action

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Rule(self._heading, app_of(self).glyphs)
            for field in self._fields:
                with Horizontal():
                    yield Static(field.label, classes="label", markup=False)
                    suggester = SuggestFromList(field.choices) if field.choices else None
                    yield Input(
                        field.value,
                        placeholder=field.empty,
                        suggester=suggester,
                        compact=True,
                        id=f"field-{field.name}",
                    )
            yield Static(id="hint")

    def on_mount(self) -> None:
        self.query(Input).first().focus()

    def _input(self, name: str) -> Input:
        return self.query_one(f"#field-{name}", Input)

    @property
    def values(self) -> Values:
        return {field.name: self._input(field.name).value.strip() for field in self._fields}

    @property
    def _current(self) -> int:
        focused = self.focused
        return next((index for index, field in enumerate(self._fields) if self._input(field.name) is focused), 0)

    def on_descendant_focus(self) -> None:
        self._show_hint()

    def on_input_changed(self) -> None:
        self._show_hint()

    def _show_hint(self, problem: str = "") -> None:
        text = Text(f"{problem}\n", palette.BAD) if problem else Text()
        text.append("enter", f"bold {palette.ACCENT}").append(f" {self._action}   ", palette.DIM)
        if self._fields[self._current].choices:
            text.append("ctrl+o", f"bold {palette.ACCENT}").append(" choose   ", palette.DIM)
            text.append("Right", f"bold {palette.ACCENT}").append(" complete   ", palette.DIM)
        text.append("esc", f"bold {palette.ACCENT}").append(" cancel", palette.DIM)
        self.query_one("#hint", Static).update(text)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        problem = self._check(self.values)
        if problem:
            self._show_hint(problem)
        else:
            self.dismiss(self.values)

    def action_move(self, by: int) -> None:
        field = self._fields[(self._current + by) % len(self._fields)]
        self.set_focus(self._input(field.name))  # synchronously: the next key belongs to it

    def action_choose(self) -> None:
        """Choose the value of the field from a list."""
        field = self._fields[self._current]
        if not field.choices:
            return

        def chosen(key: Hashable) -> None:
            if key is not None:
                self._input(field.name).value = str(key)

        rows = [Row(choice, (choice,)) for choice in field.choices]
        self.app.push_screen(
            ChooseScreen(
                field.label, (Column(field.label.upper(), widest=80),), rows, selected=self.values[field.name]
            ),
            chosen,
        )
