"""Styled text of the terminal UI. Control characters in it are shown as escapes, and markup is never read."""

from __future__ import annotations

from typing import Any

import rich.text
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from midstream.printable import printable, without_controls

KEPT = "\n\t"


class Text(rich.text.Text):
    """rich's Text, of words that may come from a host."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(printable(text, KEPT), *arguments, **options)

    def append(self, text: rich.text.Text | str, style: Any = None) -> Text:
        super().append(printable(text, KEPT) if isinstance(text, str) else text, style)
        return self

    def append_text(self, text: rich.text.Text) -> Text:
        super().append_text(text)
        return self


class NoControls(LineFilter):
    """The last look at every line before it reaches the terminal: no control characters, no links. They have no width,
    so that nothing moves."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [_plain(segment) for segment in segments]


def _plain(segment: Segment) -> Segment:
    text, style, control = segment
    if text.isprintable() and (style is None or style.link is None):
        return segment
    return Segment(without_controls(text), style.update_link(None) if style is not None else None, control)
