"""The pyramid and the series: extremes are exact, growing is the same as having grown."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from midstream.tui.widgets.series import Pyramid, Series


def pyramid(values: list[float]) -> Pyramid:
    made = Pyramid()
    for value in values:
        made.append(value)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_extremes_of_any_stretch_are_those_of_its_values(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    # Halves are exact in the 32 bits that are kept.
    values = [
        chance.randrange(-4000, 4000) / 2 if chance.random() > 0.05 else math.nan
        for _ in range(chance.randrange(1, 9000))
    ]
    made = pyramid(values)
    for _ in range(200):
        start = chance.randrange(len(values))
        stop = chance.randrange(start, len(values) + 1)
        finite = [value for value in values[start:stop] if math.isfinite(value)]
        assert made.extent(start, stop) == ((min(finite), max(finite)) if finite else None)


def test_one_spike_in_a_hundred_thousand_points_is_kept() -> None:
    values = [1.0] * 100_000
    values[61_234] = 512.0
    assert pyramid(values).extent(0, len(values)) == (1.0, 512.0)


def test_what_is_not_finite_counts_as_nothing() -> None:
    made = pyramid([math.nan, math.inf, -math.inf])
    assert made.extent(0, 3) is None
    made.append(2.0)
    assert made.extent(0, 4) == (2.0, 2.0)


def test_every_point_is_in_exactly_one_column() -> None:
    series = Series()
    for step in range(0, 5000, 3):
        series.append(step, 1.0)
    for count in (1, 2, 7, 140, 4000):
        columns = series.columns(0, series.x[-1], count)
        assert len(columns) == count
        assert columns[0][0] == 0
        assert columns[-1][1] == len(series)
        assert all(left[1] == right[0] for left, right in pairwise(columns))


def test_first_and_last_step_lie_in_the_first_and_last_column() -> None:
    series = Series()
    for step in (100, 150, 200):
        series.append(step, 1.0)
    assert series.columns(100, 200, 11) == [(0, 1), *[(1, 1)] * 4, (1, 2), *[(2, 2)] * 4, (2, 3)]


def test_a_window_holds_the_points_between_its_ends() -> None:
    series = Series()
    for step in range(10):
        series.append(step, 1.0)
    assert series.window(3, 5) == (3, 6)
    assert series.window(-5, 50) == (0, 10)


def test_the_mean_of_a_stretch_leaves_out_what_is_not_finite() -> None:
    series = Series()
    for step, value in enumerate([1.0, 3.0, math.nan, math.inf, 8.0]):
        series.append(step, value)
    assert series.mean(0, 2) == 2.0
    assert series.mean(0, 5) == 4.0
    assert math.isnan(series.mean(2, 4))
