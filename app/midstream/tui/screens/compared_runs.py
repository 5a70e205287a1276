"""Curves of several runs: colours and dashes, a legend, mean and band."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

from rich.cells import cell_len, set_cell_size

from midstream.tui.state.series import Series
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text
from midstream.tui.widgets.plot import Drawn
from midstream.tui.widgets.plot_axes import value_words
from midstream.tui.widgets.table import shortened

PARTS = 400  # of the x axis, for each of which the mean of a group is computed
DASH_SIGNS = ("━━", "╍╍", "┅┅", "━╍")


def lines(runs: Sequence[tuple[str, Series]]) -> list[Drawn]:
    """Return the curve of each run, dashed where the colours begin again."""
    return [
        Drawn(series, name, palette.series(number), dash=palette.dash(number))
        for number, (name, series) in enumerate(runs)
    ]


class Bands:
    """Mean and band of groups of runs, computed again only for series that have grown."""

    def __init__(self) -> None:
        self._computed: dict[Hashable, tuple[Series, Series]] = {}

    def lines(self, groups: Mapping[str, Sequence[Series]]) -> list[Drawn]:
        """Return the band of each group, from its lowest to its highest run, and its mean."""
        drawn, kept = list[Drawn](), dict[Hashable, tuple[Series, Series]]()
        for number, (name, members) in enumerate(groups.items()):
            key = (name, tuple((id(series), len(series)) for series in members))
            mean, band = kept[key] = self._computed.get(key) or mean_and_band(members)
            colour = palette.series(number)
            drawn.append(Drawn(band, "", palette.faded(colour), smooth=False))
            drawn.append(Drawn(mean, f"{name} ({len(members)})", colour, smooth=False))
        self._computed = kept
        return drawn


def mean_and_band(members: Sequence[Series]) -> tuple[Series, Series]:
    """Return the mean over x, and the lowest and highest value at each x.

    Each member counts once at an x, however many points it has there, between its first point and its last one.
    """
    mean, band = Series(), Series()
    present = [series for series in members if len(series)]
    if not present:
        return mean, band
    first, last = min(series.x[0] for series in present), max(series.x[-1] for series in present)
    parts = [series.columns(first, last, PARTS) for series in present]
    for number in range(PARTS):
        x = first + (last - first) * number / (PARTS - 1)
        values = [_at(series, x, *ranges[number]) for series, ranges in zip(present, parts, strict=True)]
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            mean.append(x, sum(finite) / len(finite))
            band.append(x, min(finite))
            band.append(x, max(finite))
    return mean, band


def _at(series: Series, x: float, start: int, stop: int) -> float:
    """Return the mean of the points ``start <= i < stop``, or the point nearest to x.

    The result is NaN before its first point and after its last one.
    """
    if start < stop:
        return series.mean(start, stop)
    nearest = series.nearest(x) if series.x[0] <= x <= series.x[-1] else None
    return math.nan if nearest is None else series.values.value(nearest)


def legend(drawn: Sequence[Drawn], metric: str, at: float | None, glyphs: Glyphs, width: int, height: int) -> Text:
    """Return a line for each named curve: sign, name, value.

    The value is the last one, or that at ``at``. The lowest values are first; without room for all, the last line has
    the number of the others.
    """
    named = [curve for curve in drawn if curve.name]
    rows = [(curve, _value(curve.series, at)) for curve in named]
    rows.sort(key=lambda row: (math.isnan(row[1]), row[1]))
    shown = rows if len(rows) <= height else rows[: max(0, height - 1)]
    widest = max((cell_len(curve.name) for curve in named), default=0)
    text = Text(no_wrap=True)
    for curve, value in shown:
        sign = DASH_SIGNS[curve.dash % len(DASH_SIGNS)] if glyphs.braille else f"{curve.dash or '='}="
        words = "no value" if math.isnan(value) else value_words(metric, value)
        room = max(8, width - len(words) - 8)
        name = (
            curve.name if cell_len(curve.name) <= room else shortened(curve.name, room, glyphs.ellipsis, in_middle=True)
        )
        text.append(f" {sign} ", curve.colour)
        text.append(set_cell_size(name, min(room, widest)) + "  ", palette.TEXT)
        text.append(f"{words}\n", palette.DIM)
    if len(rows) > len(shown):
        text.append(f" and {len(rows) - len(shown)} more\n", palette.DIM)
    text.rstrip()
    return text


def _value(series: Series, at: float | None) -> float:
    index = series.nearest(at) if at is not None else None
    return series.last if index is None else series.values.value(index)
