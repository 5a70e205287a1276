"""The preflight in words: each check, and what mends it."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.migrate import model
from midstream.migrate.model import Check
from midstream.tui import glyphs as signs
from midstream.tui import number_format, palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.styled_text import Text

ORDER = {model.FAIL: -2, model.WARN: -1}  # what is to be read comes first, once all is known


def summary(checks: Sequence[Check]) -> str:
    """``12 checks, 1 failed``."""
    failed = sum(check.state == model.FAIL for check in checks)
    warned = sum(check.state == model.WARN for check in checks)
    parts = [f"{len(checks)} checks"]
    parts += [f"{failed} failed"] if failed else []
    parts += [f"{warned} warned"] if warned else []
    return ", ".join(parts)


def describe(checks: Sequence[Check], all_checked: bool, glyphs: Glyphs, width: int) -> Text:
    """A line a check as they come; those that failed first, once all are done."""
    text = Text()
    for check in sorted(checks, key=lambda check: ORDER.get(check.state, 0)) if all_checked else checks:
        glyph, colour = signs.check_state(glyphs, check.state)
        text.append(f"  {glyph} ", colour).append(f"{check.name:<16} ", palette.TEXT)
        detail = number_format.folded(check.detail, width, 21)
        text.append(f"{detail}\n", palette.DIM if check.state == model.PASS else colour)
        if check.hint:
            text.append(f"      mend it: {number_format.folded(check.hint, width, 15)}\n", palette.ACCENT)
    text.rstrip()
    return text
