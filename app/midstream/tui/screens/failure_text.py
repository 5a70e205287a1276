"""Text of a failure: its message, how the process ended, and its last words."""

from __future__ import annotations

from midstream import format
from midstream.counts import count
from midstream.tui.state.screen_state import ScreenState
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.log_view import clean
from midstream.watch.log_errors import is_error
from midstream.watch.run_failure import RunFailure


def describe_failure(
    failure: RunFailure, screen_state: ScreenState, glyphs: Glyphs, width: int, height: int | None = None
) -> Text:
    """Return the lines of a failure.

    Args:
        failure: The failure.
        screen_state: State of the screen.
        glyphs: Characters to draw with.
        width: Width in cells.
        height: Lines in all: only as many of its last words as fit, the newest; None: all of them.
    """
    text = Text(no_wrap=True)
    text.append(f"  {glyphs.failed} {format.folded(failure.message, width - 1, 4)}\n", palette.BAD)
    ended = failure.run.exit.time if failure.run.exit else None
    age = f"{format.age(max(0.0, screen_state.now - ended))} ago" if ended else ""
    facts = (f"process {failure.process} on {failure.run.host}", failure.ending, age)
    text.append(f"    {f'  {glyphs.dot}  '.join(filter(None, facts))}\n", palette.DIM)
    lines = [clean(line) for line in failure.log if line.strip()]
    if height is not None:
        room = max(1, height - text.plain.count("\n"))
        if len(lines) > room:
            omitted = len(lines) - room + 1
            text.append(f"    {count(omitted, 'line')} before\n", palette.DIM)
            lines = lines[omitted:]
    for line in lines:
        text.append(f"    {line}\n", palette.BAD if is_error(line) else palette.TEXT)
    text.rstrip()
    return text
