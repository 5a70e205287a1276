"""Pane: scrollable text with the keys of every list."""

from __future__ import annotations

from textual.containers import VerticalScroll

from midstream.tui import commands


class Pane(VerticalScroll, can_focus=True, inherit_bindings=False):
    """Scrolls by lines and pages."""

    SCOPES = (commands.PANE,)
    BINDINGS = commands.bindings(*SCOPES)

    def action_page(self, by: int) -> None:
        self.scroll_relative(y=by * max(1, self.size.height - 1), animate=False)

    def action_scroll_down(self) -> None:
        self.scroll_relative(y=1, animate=False)

    def action_scroll_up(self) -> None:
        self.scroll_relative(y=-1, animate=False)

    def action_scroll_home(self) -> None:
        self.scroll_home(animate=False)

    def action_scroll_end(self) -> None:
        self.scroll_end(animate=False)
