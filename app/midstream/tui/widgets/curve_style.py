"""Style of curves, and the averages to choose from."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.charts.chart import NO_RANGE, Range
from midstream.charts.smoothing import DEFAULT_FACTOR, factor_of
from midstream.tui.state.series_cache import STEP

SMOOTHINGS = (
    ("smooth", DEFAULT_FACTOR),
    ("smoother", factor_of(0.05)),
    ("raw", 0.0),
)  # (name, factor), see charts.smoothing


@dataclass(frozen=True)
class CurveStyle:
    """Style of curves: scale, outliers, smoothing, axis, and the range of y."""

    log: bool = False
    robust: bool = True
    smoothing: float = SMOOTHINGS[0][1]  # factor
    axis: str = STEP
    log_x: bool = False
    y_range: Range = NO_RANGE

    @property
    def smoothing_name(self) -> str:
        """Name of the smoothing, or its factor where it has none."""
        return next(
            (name for name, factor in SMOOTHINGS if factor == self.smoothing), f"smoothing {self.smoothing:.3g}"
        )
