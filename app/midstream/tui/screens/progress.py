"""Progress of work that a screen started in the background."""

from __future__ import annotations

from textual.message import Message

from midstream.errors import MidstreamError
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text


class Progressed(Message):
    """A line of progress."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line


def progress_lines(progress: str, error: MidstreamError | None, glyphs: Glyphs) -> list[Text]:
    """Return the lines of work in progress (empty: none) and of the last error."""
    lines = [Text(f" {glyphs.busy} {progress}", palette.ACCENT)] if progress else []
    if error is not None:
        lines.append(Text(f" {glyphs.failed} {error.message}", palette.BAD))
        lines += [Text(f"   {error.hint}", palette.ACCENT)] if error.hint else []
    return lines
