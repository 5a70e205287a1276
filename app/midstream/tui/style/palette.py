"""Colours of the widgets and of the style sheet.

Colour never carries a meaning alone: states have glyphs, the selection has a mark. Widgets read a colour when they
draw, as ``palette.GOOD``, so that a new theme applies to the next paint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from textual.color import Color
from textual.theme import Theme


@dataclass(frozen=True)
class Palette:
    """One set of colours; ``SERIES`` has one per attempt or run, in order.

    Text has a contrast of 4.5 : 1 (WCAG 2.2, AA) on each of the three backgrounds in every colour except ``FAINT``,
    which is for lines and bars.
    """

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
    # Safe for colour-blind users, after Okabe and Ito.
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
        ("#56b4e9", "#e69f00", "#35c49a", "#ce7daa", "#f0e442", "#f2774b", "#9ee64a", "#a58bff"),
    ),
    # The same hues, darkened, on a light background.
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
        ("#00679e", "#885d00", "#00714f", "#9b3f76", "#6d6400", "#b23c00", "#3a3ad6", "#5a4632"),
        dark=False,
    ),
    # For bright rooms and low vision: black, white and few colours that also differ in lightness.
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
        ("#7fd4ff", "#ffb000", "#5fffc0", "#ff9fd6", "#ffff66", "#ff9166", "#c3a6ff", "#b6ff4d"),
    ),
    # Blue and yellow only, for protanopia and deuteranopia, after Wong.
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
    # Green, amber and red.
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
        ("#5fafff", "#ffaf5f", "#5fd75f", "#d787ff", "#ffff87", "#ff6565", "#5fffff", "#90b070"),
    ),
}
DEFAULT = "midstream"
LIGHT = "paper"  # for a terminal with a light background, until a theme is chosen
_current = PALETTES[DEFAULT]


def __getattr__(name: str) -> Any:
    return getattr(_current, name)


def use(name: str) -> None:
    """Select a palette; an unknown name selects the default."""
    global _current
    _current = PALETTES.get(name, PALETTES[DEFAULT])


def themes() -> list[Theme]:
    """Return the palettes as Textual themes."""
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
    """Return the colour of the ``number``-th attempt or run, from 0."""
    return _current.SERIES[number % len(_current.SERIES)]


def dash(number: int) -> int:
    """Return the pattern of the ``number``-th run's line: 0 is solid.

    Runs of one colour differ in it.
    """
    return number // len(_current.SERIES)


def faded(colour: str, strength: float = 0.45) -> str:
    """Blend ``colour`` with the background; ``strength`` is in 0..1."""
    return Color.parse(_current.BACKGROUND).blend(Color.parse(colour), strength).hex
