"""How a global batch lies on another number of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import MidstreamError
from midstream.migrate.planning.batch_shape import batch_shape, batch_sizes, check_axes
from midstream_engine.records import ArrayEntry


@given(st.integers(1, 512), st.integers(1, 64), st.integers(-1, 64), st.sampled_from([1, 2, 4]))
def test_every_shape_keeps_the_global_batch_and_the_limit(batch: int, devices: int, limit: int, model: int):
    if devices % model or batch % (devices // model):
        with pytest.raises(MidstreamError, match="cannot be"):
            batch_shape(batch, devices, limit, model)
        return
    shape = batch_shape(batch, devices, limit, model)
    assert shape.data_parallel * shape.per_device * shape.accumulation == batch
    if limit > 0:
        assert shape.per_device <= limit


def test_fewer_devices_accumulate():
    assert batch_shape(64, 8, 8).accumulation == 1
    assert batch_shape(64, 2, 8).accumulation == 4


def test_a_batch_that_does_not_divide_is_refused_with_the_counts_that_would():
    with pytest.raises(MidstreamError) as refused:
        batch_shape(16, 6)
    assert "device counts that would do: 1, 2, 4, 8, 16" in str(refused.value)


def test_an_axis_that_does_not_divide_is_named_with_the_counts_that_would():
    arrays = [ArrayEntry("w", ["layers", "embed", "mlp"], [4, 48, 192], "float32", [], [])]
    assert check_axes(arrays, {}, 16) == []
    (problem,) = check_axes(arrays, {}, 32)
    assert problem.startswith("axis embed (48) cannot be sharded over 32 devices")
    assert "24" in problem
    assert "48" in problem


def test_a_batch_schedule_says_what_is_taken_now_and_later():
    schedule = [{"start": 0, "value": 8}, {"start": 100, "value": 16}, {"start": 200, "value": 32}]
    assert batch_sizes(64, 5) == [64]
    assert batch_sizes(schedule, 99) == [8, 16, 32]
    assert batch_sizes(schedule, 100) == [16, 32]
    assert batch_sizes(schedule, 999) == [32]
    for nonsense in (None, 0, "many", [{"value": 3}], []):
        with pytest.raises(MidstreamError, match="train_batch_size"):
            batch_sizes(nonsense, 0)
