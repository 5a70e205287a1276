"""Text of the preflight: each check with its hint."""

from __future__ import annotations

from collections.abc import Sequence

from midstream import format
from midstream.check.check_result import FAIL, PASS, WARN, Check
from midstream.counts import count
from midstream.tui.style import glyphs as signs
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text

NARROW = 50  # cells; narrower checks have their detail under them
NAME_WIDTH = 16  # cells
ORDER = {FAIL: -2, WARN: -1}  # failures and warnings first


def summary(checks: Sequence[Check]) -> str:
    """Return a summary: ``12 checks, 1 failed``."""
    failed = sum(check.state == FAIL for check in checks)
    warned = sum(check.state == WARN for check in checks)
    parts = [count(len(checks), "check")]
    parts += [f"{failed} failed"] if failed else []
    parts += [count(warned, "warning")] if warned else []
    return ", ".join(parts)


def describe(checks: Sequence[Check], all_checked: bool, glyphs: Glyphs, width: int) -> Text:
    """Return a line per check; when all are done, failures come first."""
    text = Text()
    widest = max([NAME_WIDTH, *(len(check.name) for check in checks)])
    for check in sorted(checks, key=lambda check: ORDER.get(check.state, 0)) if all_checked else checks:
        glyph, colour = signs.check_state(glyphs, check.state)
        text.append(f"  {glyph} ", colour)
        text.append(f"{check.name:<{widest}} " if width >= NARROW else f"{check.name}\n    ", palette.TEXT)
        detail = format.folded(check.detail, width, widest + 5 if width >= NARROW else 4)
        text.append(f"{detail}\n", palette.DIM if check.state == PASS else colour)
        if check.hint:
            text.append(f"      hint: {format.folded(check.hint, width, 12)}\n", palette.ACCENT)
    text.rstrip()
    return text
