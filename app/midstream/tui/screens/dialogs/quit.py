"""Ask what becomes of a move that is under way, where it ends with the screen: in the demo."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.migrate.model import MigrationView
from midstream.tui import palette
from midstream.tui.styled_text import Text
from midstream.tui.widgets.chrome import Rule

FINISH, ROLL_BACK = "finish", "roll back"
STAY = ""


class QuitScreen(ModalScreen[str]):
    """FINISH, ROLL_BACK or STAY. ``given_up``: steps that a rollback gives up. ``readonly``: it is not offered."""

    BINDINGS: ClassVar = [
        ("f", "answer('finish')", "Let it finish"),
        ("r", "roll_back", "Roll it back"),
        ("escape,q,ctrl+c", "answer('')", "Stay"),
    ]

    def __init__(self, view: MigrationView, *, given_up: int, readonly: bool) -> None:
        super().__init__()
        self._view = view
        self._given_up = given_up
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        from midstream.tui.app import MidstreamApp

        assert isinstance(self.app, MidstreamApp)
        plan = self._view.plan
        with Vertical(id="dialog"):
            yield Rule("A move is under way", self.app.glyphs)
            yield Static(
                Text(
                    f"{plan.run_id} is being moved from {plan.source} to {plan.target} ({self._view.phase}).\n"
                    "Both machines are the demo's own: they end with it, and the move too.",
                    palette.TEXT,
                ),
                classes="words",
            )
            keys = Text()
            keys.append("f", f"bold {palette.ACCENT}").append("    let it finish, then end the demo\n", palette.DIM)
            if not self._readonly:
                lost = f"; {self._given_up} steps on {plan.target} are given up" if self._given_up else ""
                keys.append("r", f"bold {palette.ACCENT}")
                keys.append(f"    roll it back, then end the demo{lost}\n", palette.DIM)
            keys.append("esc", f"bold {palette.ACCENT}").append("  stay", palette.DIM)
            yield Static(keys)

    def action_roll_back(self) -> None:
        if not self._readonly:
            self.dismiss(ROLL_BACK)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)
