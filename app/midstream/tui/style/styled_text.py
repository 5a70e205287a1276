"""Styled text of the terminal UI.

Control characters are shown as escapes, markup is not interpreted.
"""

from __future__ import annotations

from typing import Any

import rich.text
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from midstream.counts import count
from midstream.printable import printable, without_controls
from midstream.tui.style import palette

ALLOWED_CONTROLS = "\n\t"


class Text(rich.text.Text):
    """Text of rich, for text that may come from a host."""

    def __init__(self, text: str = "", *arguments: Any, **options: Any) -> None:
        super().__init__(printable(text, ALLOWED_CONTROLS), *arguments, **options)

    def append(self, text: rich.text.Text | str, style: Any = None) -> Text:
        super().append(printable(text, ALLOWED_CONTROLS) if isinstance(text, str) else text, style)
        return self

    def append_text(self, text: rich.text.Text) -> Text:
        super().append_text(text)
        return self


def cut_to(text: Text, height: int, hint: str) -> Text:
    """Return a text that has at most ``height`` lines.

    The last one says how many are left out, and ``hint``.

    A height of less than two cuts nothing: the place of the text is not laid out yet.
    """
    lines = text.split("\n")
    if height < 2 or len(lines) <= height:
        return text
    omitted = len(lines) - height + 1
    shown = Text(no_wrap=True)
    for line in lines[: height - 1]:
        shown.append_text(line).append("\n")
    return shown.append(f"  {count(omitted, 'more line')}: {hint}", palette.DIM)


class ControlFilter(LineFilter):
    """Filter of control characters and links in terminal lines, so that columns align."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [_plain(segment) for segment in segments]


def _plain(segment: Segment) -> Segment:
    text, style, control = segment
    if text.isprintable() and (style is None or style.link is None):
        return segment
    return Segment(without_controls(text), style.update_link(None) if style is not None else None, control)
