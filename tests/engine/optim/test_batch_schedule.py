"""Batch schedules: no sample is read twice or left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from midstream_engine.config import BatchSchedule, ConfigError


def test_batch_schedule_of_a_number_has_one_size() -> None:
    schedule = BatchSchedule.of(8)
    assert (schedule.points, schedule.first_sample(5), str(schedule)) == (((0, 8),), 40, "8")


def test_batch_schedule_sample_counts_add_up() -> None:
    schedule = BatchSchedule.of([{"start": 0, "value": 8}, {"start": 3, "value": 4}, {"start": 10, "value": 16}])
    assert [schedule.size(step) for step in (0, 2, 3, 9, 10, 99)] == [8, 8, 4, 4, 16, 16]
    assert [schedule.first_sample(step) for step in (0, 3, 4, 10, 11)] == [0, 24, 28, 52, 68]
    assert schedule.sizes(0, 10) == [8, 4]
    assert schedule.sizes(3, 11) == [4, 16]
    assert BatchSchedule.from_json(schedule.to_json()) == schedule


def test_batch_schedule_change_keeps_the_past() -> None:
    assert BatchSchedule.of(8).then(5, BatchSchedule.of(16)).points == ((0, 8), (5, 16))
    assert BatchSchedule.of(8).then(5, BatchSchedule.of(8)) == BatchSchedule.of(8)
    later = BatchSchedule.of([{"start": 0, "value": 4}, {"start": 9, "value": 2}])
    assert BatchSchedule.of(8).then(5, later).points == ((0, 8), (5, 4), (9, 2))
    assert BatchSchedule.of(8).then(0, BatchSchedule.of(4)) == BatchSchedule.of(4)


@st.composite
def schedules(draw: st.DrawFn) -> BatchSchedule:
    starts = sorted(draw(st.sets(st.integers(1, 30), max_size=4)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(starts) + 1, max_size=len(starts) + 1))
    points = zip([0, *starts], sizes, strict=True)
    return BatchSchedule.of([{"start": start, "value": size} for start, size in points])


@seed(4)
@settings(max_examples=80, deadline=None, database=None)
@given(schedules(), st.integers(0, 35), schedules())
def test_batch_schedule_joins_batches_without_gap_or_overlap(
    first: BatchSchedule, step: int, second: BatchSchedule
) -> None:
    joined = first.then(step, second)
    for index in range(40):
        assert joined.first_sample(index + 1) == joined.first_sample(index) + joined.size(index)
        assert joined.size(index) == (first if index < step else second).size(index)
    assert joined.first_sample(step) == first.first_sample(step)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "not a positive number"), ("many", "not a positive number"), ([], "is empty"), (2.5, "not a positive"),
        ([{"start": 1, "value": 8}], "increase from 0"), ([8], "neither a number nor"),
        ([{"start": 0, "value": 8}, {"start": 0, "value": 4}], "increase from 0"),
    ],
)  # fmt: skip
def test_batch_schedule_refuses_invalid_values(value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        BatchSchedule.of(value)
