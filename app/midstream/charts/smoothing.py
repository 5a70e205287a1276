"""Smoothing factors: a moving average weighted by distance on the x axis.

The average is like W&B's "time weighted EMA".

With factor s, a point counts min(sqrt(s), 0.999) times less for each thousandth of the visible range that it is away.
The same factor therefore looks the same at any length and zoom. 0 is no average.
"""

from __future__ import annotations

import math

from midstream.errors import UsageError

PARTS = 1000  # of the visible range
MAX_WEIGHT = 0.999
MAX_FACTOR = 0.999


def time_constant(factor: float) -> float:
    """Return the average's time constant as a share of the visible range; 0 for none."""
    if factor <= 0:
        return 0.0
    return round(-1 / (PARTS * math.log(min(math.sqrt(factor), MAX_WEIGHT))), 12)  # the inverse of `factor_of`


def factor_of(time_constant: float) -> float:
    """Return the factor of a time constant, as a share of the visible range."""
    return math.exp(-2 / (PARTS * time_constant))


DEFAULT_FACTOR = factor_of(0.015)  # about 0.875


class Average:
    """The average of points, normalised by the sum of its weights.

    Points are added in ascending order of x.
    """

    def __init__(self, factor: float, ends: tuple[float, float], log: bool = False) -> None:
        """Create an average without points.

        Args:
            factor: Smoothing factor.
            ends: Visible range of x.
            log: The x axis is logarithmic: distances are those of the logarithms.
        """
        self._log = log
        self._low = ends[0]
        self._constant = time_constant(factor) * (self._place(ends[1]) - self._place(ends[0]))
        self._total = self._weight = self._before = 0.0

    def _place(self, x: float) -> float:
        return math.log(max(x, self._low)) if self._log else x

    def add(self, x: float, y: float) -> float:
        """Add a point and return the average there.

        NaN and infinity count nothing, and their average is NaN.
        """
        if not math.isfinite(y):
            return math.nan
        at = self._place(x)
        fade = math.exp((self._before - at) / self._constant) if self._constant > 0 and self._weight else 0.0
        self._total, self._weight, self._before = self._total * fade + y, self._weight * fade + 1.0, at
        return self._total / self._weight


def parse_factor(text: str) -> float:
    """Parse a smoothing factor.

    Raises:
        UsageError: It is not a number from 0 to 0.999.
    """
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= MAX_FACTOR:
        raise UsageError(f"smoothing {text!r} is no factor", f"0 is none, 0.6 a little, {MAX_FACTOR} the most")
    return factor
