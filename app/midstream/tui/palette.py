"""The colours: one palette for widgets that draw themselves and for the style sheet. Safe for colour-blind eyes
(after Okabe and Ito), and never the only carrier of a meaning: states have glyphs, the selection has a mark."""

from __future__ import annotations

from textual.color import Color
from textual.theme import Theme

BACKGROUND = "#10151c"
SURFACE = "#18202a"
RAISED = "#22303f"
TEXT = "#d5dde7"
DIM = "#8090a2"
FAINT = "#52637a"
ACCENT = "#56b4e9"
GOOD = "#35c49a"
WAIT = "#e8b93c"
BAD = "#f2774b"

# One colour an attempt, in the order of the lineage.
SERIES = ("#56b4e9", "#e69f00", "#35c49a", "#cc79a7", "#f0e442", "#f2774b")

THEME = Theme(
    name="midstream",
    primary=ACCENT,
    secondary="#cc79a7",
    accent="#e69f00",
    success=GOOD,
    warning=WAIT,
    error=BAD,
    foreground=TEXT,
    background=BACKGROUND,
    surface=SURFACE,
    panel=RAISED,
    dark=True,
    variables={"dim": DIM, "faint": FAINT},
)


def series(number: int) -> str:
    """The colour of the ``number``-th attempt, from 0."""
    return SERIES[number % len(SERIES)]


def faded(colour: str, strength: float = 0.45) -> str:
    """``colour`` laid over the background with ``strength`` in 0..1."""
    return Color.parse(BACKGROUND).blend(Color.parse(colour), strength).hex
