"""Pyramid and series: exact extremes, and appending equals building at once."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from midstream.tui.state.series import Pyramid, Series


def pyramid(values: list[float]) -> Pyramid:
    made = Pyramid()
    for value in values:
        made.append(value)
    return made


@pytest.mark.parametrize("seed", range(6))
def test_pyramid_extremes_equal_those_of_values(seed: int) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    # Halves are exact in float32.
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


@pytest.mark.parametrize("seed", range(6))
def test_pyramid_in_blocks_equals_value_by_value(seed: int) -> None:
    print(f"seed {seed}")
    chance, made, values = random.Random(seed), Pyramid(), list[float]()
    for _ in range(20):
        gaps = chance.choice((0.0, 0.0, 0.01, 1.0))
        more = [
            chance.randrange(-4000, 4000) / 2 if chance.random() >= gaps else chance.choice((math.nan, math.inf))
            for _ in range(chance.choice((0, 1, 15, 16, 17, 300, 5000)))
        ]
        made.extend(more)
        values += more
        slow = pyramid(values)
        ranges = [(0, len(values)), *(tuple(sorted(chance.choices(range(len(values) + 1), k=2))) for _ in range(50))]
        for start, stop in ranges:
            finite = [value for value in values[start:stop] if math.isfinite(value)]
            expected = (min(finite), max(finite), sum(finite), len(finite)) if finite else None
            assert made.summary(start, stop) == slow.summary(start, stop) == expected


def test_known_summaries_are_those_of_the_values_now() -> None:
    chance, series = random.Random(1), Series()
    for step in range(300_000):
        series.append(step, chance.randrange(-4000, 4000) / 2)
    kept = []
    for _ in range(40):
        before = series.columns(0, series.x[-1], 100)
        series.append(len(series), 9000.0 + len(series))  # a new highest value, in the last column
        columns = series.columns(0, series.x[-1], 100)
        kept.append(len(set(before) & set(columns)))
        assert series.values.summaries(columns) == [series.values.summary(*column) for column in columns]
        beyond = [(len(series) - 5, len(series) + 5)]  # its values come later
        assert series.values.summaries(beyond) == [series.values.summary(*beyond[0])]
    assert sum(kept) >= 90 * len(kept), "a point that is appended leaves nearly all columns as they are"


def test_wide_columns_end_near_the_place_of_their_edge() -> None:
    series = Series()
    for step in range(300_000):
        series.append(step, 1.0)
    for log in (False, True):
        columns = series.columns(1, 299_999, 100, log)
        assert columns[0][0] == 1
        assert columns[-1][1] == len(series)
        assert all(left[1] == right[0] for left, right in pairwise(columns))
        for number, (start, stop) in enumerate(columns[:-1]):
            share = (number + 0.5) / 99
            edge = math.ceil(299_999**share if log else 1 + share * 299_998)
            assert edge - (stop - start) / 64 <= stop <= edge


def test_pyramid_keeps_spike_in_100000_points() -> None:
    values = [1.0] * 100_000
    values[61_234] = 512.0
    assert pyramid(values).extent(0, len(values)) == (1.0, 512.0)


def test_pyramid_ignores_non_finite_values() -> None:
    made = pyramid([math.nan, math.inf, -math.inf])
    assert made.extent(0, 3) is None
    made.append(2.0)
    assert made.extent(0, 4) == (2.0, 2.0)


def test_series_puts_each_point_in_one_column() -> None:
    series = Series()
    for step in range(0, 5000, 3):
        series.append(step, 1.0)
    for count in (1, 2, 7, 140, 4000):
        columns = series.columns(0, series.x[-1], count)
        assert len(columns) == count
        assert columns[0][0] == 0
        assert columns[-1][1] == len(series)
        assert all(left[1] == right[0] for left, right in pairwise(columns))


def test_series_first_and_last_step_are_at_the_ends() -> None:
    series = Series()
    for step in (100, 150, 200):
        series.append(step, 1.0)
    assert series.columns(100, 200, 11) == [(0, 1), *[(1, 1)] * 4, (1, 2), *[(2, 2)] * 4, (2, 3)]


def test_series_window_has_points_between_its_ends() -> None:
    series = Series()
    for step in range(10):
        series.append(step, 1.0)
    assert series.window(3, 5) == (3, 6)
    assert series.window(-5, 50) == (0, 10)


def test_pyramid_mean_ignores_non_finite_values() -> None:
    series = Series()
    for step, value in enumerate([1.0, 3.0, math.nan, math.inf, 8.0]):
        series.append(step, value)
    assert series.mean(0, 2) == 2.0
    assert series.mean(0, 5) == 4.0
    assert math.isnan(series.mean(2, 4))
