"""`--metrics RUN --system`: metrics of a run's hosts as lines."""

from __future__ import annotations

import math

from midstream.operations.system_points import points
from midstream.watch.system_series import SystemSeries


def test_values_of_accelerators_are_listed_by_index() -> None:
    series = SystemSeries()
    for second in range(12):
        units = [{"index": 0, "power": 100.0}, {"index": 2, "power": 300.0, "temperature": math.nan}]
        series.add(1e9 + second, {"cpu_used": 0.5, "accelerators": units})
    [(first, values), (second, _)] = points(series, -math.inf)
    assert values == {"power": [100.0, None, 300.0], "cpu": 0.5}
    assert [at for at, _ in points(series, first)] == [second]
