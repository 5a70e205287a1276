"""Colours of terminals with 256 or 16 colours.

A colour becomes the nearest one of the terminal that keeps text readable.

A terminal inside tmux, or over ssh without COLORTERM, shows 256 colours. The nearest colour of each alone would lower
the contrast of text, and would show the dark backgrounds as green or blue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.color import Color as TextualColor
from textual.filter import LineFilter

from midstream.tui.style.palette import PALETTES

MIN_CONTRAST = 4.5  # of text: WCAG 2.2, criterion 1.4.3
KEPT_CONTRAST = 0.9  # of the contrast of a theme that its lines and bars keep at least

RGB = tuple[int, int, int]
Lab = tuple[float, float, float]

_LEVELS = (0, 95, 135, 175, 215, 255)
# Colours 16 to 255 of xterm: a cube of 6 x 6 x 6 and 24 greys. The first 16 are the user's own, and are not used.
XTERM_256: dict[int, RGB] = {
    **{
        16 + 36 * red + 6 * green + blue: (_LEVELS[red], _LEVELS[green], _LEVELS[blue])
        for red in range(6)
        for green in range(6)
        for blue in range(6)
    },
    **{232 + index: (8 + 10 * index, 8 + 10 * index, 8 + 10 * index) for index in range(24)},
}
# The 16 colours of xterm, and of VGA and the Linux console: a colour is chosen that is readable with both.
XTERM_16: tuple[RGB, ...] = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0), (0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0)),
    *((92, 92, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255)),
)
VGA_16: tuple[RGB, ...] = (
    *((0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170), (170, 170, 170)),
    *((85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85)),
    *((85, 85, 255), (255, 85, 255), (85, 255, 255), (255, 255, 255)),
)


def rgb(colour: str) -> RGB:
    """Return the values of ``#rrggbb``."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return red, green, blue


@dataclass(frozen=True)
class _System:
    """Colours of a terminal: number -> the colours that it may be, one per palette.

    ``chosen`` maps colours of the themes: the nearest of 16 colours would be the same for most of them.
    """

    colours: Mapping[int, tuple[RGB, ...]]
    backgrounds: Mapping[int, tuple[RGB, ...]]
    chosen: Mapping[RGB, int] = field(default_factory=dict[RGB, int])


# role -> number on a dark and on a light background; the last ones are those of the series
_ROLES_16 = {
    **{"TEXT": (15, 0), "DIM": (7, 0), "FAINT": (8, 8)},
    **{"ACCENT": (14, 4), "GOOD": (10, 4), "WAIT": (11, 5), "BAD": (9, 1)},
}
_SERIES_16 = ((14, 11, 10, 13, 15, 9, 10, 7), (4, 5, 0, 5, 0, 1, 4, 0))


def _chosen_16() -> dict[RGB, int]:
    """Map the colours of the themes to the 16 colours.

    A colour with two roles has that of its first.
    """
    chosen_16: dict[RGB, int] = {}
    for colours in PALETTES.values():
        light = not colours.dark
        for role, numbers in _ROLES_16.items():
            chosen_16.setdefault(rgb(getattr(colours, role)), numbers[light])
        for colour, number in zip(colours.SERIES, _SERIES_16[light], strict=False):
            chosen_16.setdefault(rgb(colour), number)
    return chosen_16


_256 = {number: (colour,) for number, colour in XTERM_256.items()}
_16 = dict(enumerate(zip(XTERM_16, VGA_16, strict=True)))
_SYSTEMS = {
    "256": _System(_256, _256),
    "standard": _System(_16, {number: _16[number] for number in (0, 15)}, _chosen_16()),
}


class TerminalColors(LineFilter):
    """Replacement of colours by those of a terminal with fewer.

    ``system`` is ``256`` or ``standard`` (16 colours).
    """

    def __init__(self, system: str) -> None:
        super().__init__(enabled=system in _SYSTEMS)
        self._system = system

    def apply(self, segments: list[Segment], background: TextualColor) -> list[Segment]:
        system = self._system
        return [
            segment
            if segment.style is None
            else Segment(segment.text, reduced_style(system, segment.style), segment.control)
            for segment in segments
        ]


@lru_cache(maxsize=4096)
def reduced_style(system: str, style: Style) -> Style:
    """Return a style in the colours of the terminal.

    Text without a background keeps its nearest colour.
    """
    front, back = _value(style.color), _value(style.bgcolor)
    if front is None and back is None:
        return style
    number, other = reduced(system, front, back)
    return style + Style(
        color=None if number is None else Color.from_ansi(number),
        bgcolor=None if other is None else Color.from_ansi(other),
    )


def _value(colour: Color | None) -> RGB | None:
    if colour is None or colour.is_default:
        return None
    value = colour.get_truecolor()
    return value.red, value.green, value.blue


@lru_cache(maxsize=4096)
def reduced(system: str, front: RGB | None, back: RGB | None) -> tuple[int | None, int | None]:
    """Return the terminal's numbers of a text colour and of its background.

    Text that has a contrast of `MIN_CONTRAST` in the theme has it on the terminal, or the highest that there is; lines
    and bars keep about the contrast that they have.
    """
    has = _SYSTEMS[system]
    other = None if back is None else _nearest(has.backgrounds, back)
    if front is None:
        return None, other
    if other is None or back is None:
        return _nearest(has.colours, front), other
    behind = has.backgrounds[other]
    required = contrast(front, back)
    required = MIN_CONTRAST if required >= MIN_CONTRAST else KEPT_CONTRAST * required
    preferred = has.chosen.get(front)
    nearest_first = _by_distance(has.colours, front)
    for number in nearest_first if preferred is None else (preferred, *nearest_first):
        if _contrast(has.colours[number], behind) >= required:
            return number, other
    return max(has.colours, key=lambda number: _contrast(has.colours[number], behind)), other


def _contrast(colours: Sequence[RGB], behind: Sequence[RGB]) -> float:
    """Return the lowest contrast, over the palettes that the terminal may have."""
    return min(contrast(colour, back) for colour, back in zip(colours, behind, strict=True))


def _nearest(candidates: Mapping[int, tuple[RGB, ...]], colour: RGB) -> int:
    return min(candidates, key=_distance_from(candidates, colour))


def _by_distance(candidates: Mapping[int, tuple[RGB, ...]], colour: RGB) -> list[int]:
    return sorted(candidates, key=_distance_from(candidates, colour))


def _distance_from(candidates: Mapping[int, tuple[RGB, ...]], colour: RGB) -> Callable[[int], float]:
    """Return a function of a number: its distance, over the terminal's palettes."""
    target = oklab(colour)
    return lambda number: math.dist(_joined(candidates[number]), target * len(candidates[number]))


@lru_cache(maxsize=4096)
def _joined(shades: tuple[RGB, ...]) -> tuple[float, ...]:
    return tuple(value for shade in shades for value in oklab(shade))


def contrast(colour: RGB, other: RGB) -> float:
    """Contrast ratio, 1..21 (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio)."""
    low, high = sorted((_luminance(colour), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@lru_cache(maxsize=4096)
def _luminance(colour: RGB) -> float:
    red, green, blue = map(_linear, colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: int) -> float:
    """Return the linear light, 0..1, of an sRGB value, 0..255."""
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


@lru_cache(maxsize=4096)
def oklab(colour: RGB) -> Lab:
    """Return a colour in OKLab, where distances are those that people see.

    See https://bottosson.github.io/posts/oklab/.
    """
    red, green, blue = map(_linear, colour)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * short,
    )
