"""The colours: one palette for widgets that draw themselves and for the style sheet. Never the only carrier of a
meaning: states have glyphs, the selection has a mark.

A colour is read at the moment of drawing, as ``palette.GOOD``, so that another theme holds from the next paint on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.color import Color
from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    """One set of colours. ``SERIES``: one an attempt or a run, in their order. Words are read at 4.5 : 1 (WCAG 2.2, AA)
    in all of them but ``FAINT``, on each of the three grounds; ``FAINT`` is for lines and bars."""

    BACKGROUND: str
    SURFACE: str
    RAISED: str
    TEXT: str
    DIM: str
    FAINT: str
    ACCENT: str
    GOOD: str
    WAIT: str
    BAD: str
    SERIES: tuple[str, ...]
    dark: bool = True


PALETTES = {
    # Safe for colour-blind eyes, after Okabe and Ito.
    "midstream": Palette(
        "#10151c",
        "#18202a",
        "#22303f",
        "#d5dde7",
        "#8998a9",
        "#52637a",
        "#56b4e9",
        "#35c49a",
        "#e8b93c",
        "#f2774b",
        ("#56b4e9", "#e69f00", "#35c49a", "#ce7daa", "#f0e442", "#f2774b"),
    ),
    # The same hues on paper, darkened.
    "paper": Palette(
        "#fbfaf6",
        "#f1efe8",
        "#e8e5dc",
        "#22262c",
        "#5d6570",
        "#a3a8ae",
        "#00679e",
        "#00714f",
        "#8a5a00",
        "#b23c00",
        ("#00679e", "#885d00", "#00714f", "#9b3f76", "#6d6400", "#b23c00"),
        dark=False,
    ),
    # For bright rooms and weak eyes: black, white, and few colours, far apart in lightness too.
    "contrast": Palette(
        "#000000",
        "#000000",
        "#333333",
        "#ffffff",
        "#c8c8c8",
        "#8a8a8a",
        "#7fd4ff",
        "#5fffc0",
        "#ffe14d",
        "#ff9166",
        ("#7fd4ff", "#ffb000", "#5fffc0", "#ff9fd6", "#ffff66", "#ff9166"),
    ),
    # Blue and yellow alone: seen by eyes without red or without green, after Wong.
    "blue-yellow": Palette(
        "#0d1117",
        "#151b24",
        "#1e2938",
        "#dbe2ea",
        "#8895a5",
        "#566479",
        "#6cb6ff",
        "#6cb6ff",
        "#f0c000",
        "#ffd966",
        ("#6cb6ff", "#f0c000", "#b3d9ff", "#b08d00", "#5893d1", "#fff2b3"),
    ),
    # The usual green, amber and red.
    "classic": Palette(
        "#1c1c1c",
        "#262626",
        "#303030",
        "#dadada",
        "#9a9a9a",
        "#626262",
        "#5fafff",
        "#5fd75f",
        "#ffd75f",
        "#ff6565",
        ("#5fafff", "#ffaf5f", "#5fd75f", "#d787ff", "#ffff87", "#ff6565"),
    ),
}
DEFAULT = "midstream"
_now = PALETTES[DEFAULT]


def __getattr__(name: str) -> Any:
    return getattr(_now, name)


def use(name: str) -> None:
    """Draw in these colours from now on."""
    global _now
    _now = PALETTES.get(name, PALETTES[DEFAULT])


def themes() -> list[Theme]:
    """The palettes for the style sheet."""
    return [
        Theme(
            name=name,
            primary=colours.ACCENT,
            secondary=colours.SERIES[3],
            accent=colours.SERIES[1],
            success=colours.GOOD,
            warning=colours.WAIT,
            error=colours.BAD,
            foreground=colours.TEXT,
            background=colours.BACKGROUND,
            surface=colours.SURFACE,
            panel=colours.RAISED,
            dark=colours.dark,
            variables={"dim": colours.DIM, "faint": colours.FAINT},
        )
        for name, colours in PALETTES.items()
    ]


def series(number: int) -> str:
    """The colour of the ``number``-th attempt or run, from 0."""
    return _now.SERIES[number % len(_now.SERIES)]


def faded(colour: str, strength: float = 0.45) -> str:
    """``colour`` laid over the background with ``strength`` in 0..1."""
    return Color.parse(_now.BACKGROUND).blend(Color.parse(colour), strength).hex
