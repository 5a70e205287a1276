"""Division of a global batch over another number of devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import MidstreamError
from midstream.migrate.planning.batch_shape import batch_shape, batch_sizes, check_axes
from midstream_core.mesh_division import divisors
from midstream_core.records import ArrayEntry


@given(st.integers(1, 512), st.integers(1, 64), st.integers(-1, 64), st.sampled_from([1, 2, 4]))
def test_batch_shape_keeps_global_batch_and_limit(batch: int, devices: int, limit: int, model: int) -> None:
    if devices % model or batch % (devices // model):
        with pytest.raises(MidstreamError, match="cannot be"):
            batch_shape(batch, devices, limit, model)
        return
    shape = batch_shape(batch, devices, limit, model)
    assert shape.data_parallel * shape.per_device * shape.accumulation == batch
    if limit > 0:
        assert shape.per_device <= limit


def test_fewer_devices_use_accumulation() -> None:
    assert batch_shape(64, 8, 8).accumulation == 1
    assert batch_shape(64, 2, 8).accumulation == 4


def test_indivisible_batch_error_lists_device_counts() -> None:
    with pytest.raises(MidstreamError) as refused:
        batch_shape(16, 6)
    assert "device counts that divide it: 1, 2, 4, 8, 16" in str(refused.value)


def test_indivisible_axis_error_lists_device_counts() -> None:
    arrays = [ArrayEntry("w", ["layers", "embed", "mlp"], [4, 48, 192], "float32", [], [])]
    assert check_axes(arrays, {}, 16) == []
    (problem,) = check_axes(arrays, {}, 32)
    assert problem.startswith("axis embed (48) cannot be sharded over 32 devices")
    assert "24" in problem
    assert "48" in problem


def test_axes_mapped_by_axis_resources_are_checked() -> None:
    arrays = [ArrayEntry("w", ["layers", "embed", "mlp"], [4, 48, 190], "float32", [], [])]
    trainer = {"model_axis_size": 4, "axis_resources": {"mlp": ["model"]}}
    (problem,) = check_axes(arrays, trainer, 16)
    assert problem == (
        "axis mlp (190) cannot be sharded over 4 devices; device counts that divide it: none with this model_axis_size"
    )
    assert check_axes(arrays, {**trainer, "fsdp_axis": [], "axis_resources": {}}, 28) == []


def test_batch_sizes_lists_current_and_later_sizes() -> None:
    schedule = [{"start": 0, "value": 8}, {"start": 100, "value": 16}, {"start": 200, "value": 32}]
    assert batch_sizes(64, 5) == [64]
    assert batch_sizes(schedule, 99) == [8, 16, 32]
    assert batch_sizes(schedule, 100) == [16, 32]
    assert batch_sizes(schedule, 999) == [32]
    for nonsense in (None, 0, "many", [{"value": 3}], []):
        with pytest.raises(MidstreamError, match="train_batch_size"):
            batch_sizes(nonsense, 0)


@given(st.integers(1, 5000))
def test_divisors_are_all_and_ascending(number: int) -> None:
    assert divisors(number) == [each for each in range(1, number + 1) if number % each == 0]


def test_batch_of_a_damaged_config_is_divided() -> None:
    assert batch_shape(1 << 31, 8).per_device == 1 << 28
