"""Dialog on quitting the demo during a migration."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from midstream.counts import agree, count
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.base_app import app_of
from midstream.tui.style import palette
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.chrome import Rule

FINISH, ROLL_BACK = "finish", "roll back"


class QuitScreen(ModalScreen[str]):
    """Dialog with the answers FINISH, ROLL_BACK, or an empty one to stay.

    ``discarded_steps``: steps that a rollback discards.
    """

    BINDINGS: ClassVar = [
        ("f", "answer('finish')", "Finish"),
        ("r", "roll_back", "Roll back"),
        ("escape,q,ctrl+c", "answer('')", "Stay"),
    ]

    def __init__(self, view: MigrationView, *, discarded_steps: int, readonly: bool) -> None:
        super().__init__()
        self._view = view
        self._discarded_steps = discarded_steps
        self._readonly = readonly

    def compose(self) -> ComposeResult:
        plan, returns = self._view.plan, self._view.rolled_back
        state = (
            f"returns from {plan.target} to {plan.source}"
            if returns
            else (f"is being migrated from {plan.source} to {plan.target} ({self._view.phase})")
        )
        with Vertical(id="dialog"):
            yield Rule("Running migration", app_of(self).glyphs)
            yield Static(
                Text(
                    f"{plan.run_id} {state}.\nBoth hosts belong to the demo and end with it.",
                    palette.TEXT,
                ),
                classes="words",
            )
            keys = Text()
            keys.append("f", f"bold {palette.ACCENT}").append(
                f"    {'wait for it' if returns else 'finish it'}, then end the demo\n", palette.DIM
            )
            if not (self._readonly or returns):
                steps = self._discarded_steps
                discarded = f"; {count(steps, 'step')} on {plan.target} {agree(steps)} discarded" if steps else ""
                keys.append("r", f"bold {palette.ACCENT}")
                keys.append(f"    roll it back, then end the demo{discarded}\n", palette.DIM)
            keys.append("esc", f"bold {palette.ACCENT}").append("  stay", palette.DIM)
            yield Static(keys)

    def action_roll_back(self) -> None:
        if not (self._readonly or self._view.rolled_back):
            self.dismiss(ROLL_BACK)

    def action_answer(self, answer: str) -> None:
        self.dismiss(answer)
