"""Memory fit of a run: footprint, shape that fits, unsupported precisions."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import MidstreamError
from midstream.launch.engine_flags import engine_flags
from midstream.migrate.journal.request import Request
from midstream.migrate.planning import memory_fit, plan_shape
from midstream.migrate.planning.batch_shape import batch_shape
from midstream.watch.machine import Accelerator
from midstream_core.records import ArrayEntry

LAYERS, EMBED, MLP = 4, 64, 256
CONFIG = {
    "model": {"num_layers": LAYERS, "hidden_dim": EMBED, "seq_len": 128, "num_heads": 4},
    "trainer": {"mp": "f32", "train_batch_size": 64},
}


def array(name: str, *axes: tuple[str, int], dtype: str = "float32") -> ArrayEntry:
    return ArrayEntry(name, [axis for axis, _ in axes], [size for _, size in axes], dtype, [], [])


WEIGHT = (("layers", LAYERS), ("embed", EMBED), ("mlp", MLP))
ARRAYS = [
    array("model/mlp/weight", *WEIGHT),
    array("model/bias", ("heads", 8)),
    array("optimizer/mu/mlp/weight", *WEIGHT),
    array("optimizer/nu/mlp/weight", *WEIGHT),
]
ELEMENTS = LAYERS * EMBED * MLP


def test_footprint_shards_state_and_replicates_the_rest() -> None:
    for devices in (1, 2, 8):
        footprint = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, devices), devices)
        assert footprint.state == 3 * 4 * ELEMENTS // devices + 4 * 8
        assert footprint.gradients == 4 * (ELEMENTS // devices + 8)


@pytest.mark.parametrize(
    ("trainer", "shards"),
    [
        ({}, 4),
        ({"fsdp_axis": []}, 1),  # each device has all parameters
        ({"fsdp_axis": None}, 4),
        ({"fsdp_axis": [], "parameter_axis_resources": {"layers": ["data"]}}, 4),
        ({"model_axis_size": 2, "fsdp_axis": [], "tensor_parallel_axes": ["mlp"]}, 2),
        ({"model_axis_size": 2}, 2),  # sharded over `data` alone
        ({"model_axis_size": 2, "tensor_parallel_axes": ["mlp", "heads"]}, 4),
    ],
)
def test_footprint_follows_the_mappings_of_the_run(trainer: dict[str, Any], shards: int) -> None:
    config = {**CONFIG, "trainer": {**CONFIG["trainer"], **trainer}}
    shape = batch_shape(64, 4, model_axis_size=trainer.get("model_axis_size", 1))
    footprint = memory_fit.footprint(ARRAYS, config, shape, 4)
    bias = 2 if "heads" in trainer.get("tensor_parallel_axes", ()) else 1
    assert footprint.state == 3 * 4 * ELEMENTS // shards + 4 * 8 // bias
    assert footprint.gradients == 4 * (ELEMENTS // shards + 8 // bias)


def test_footprint_has_the_width_of_the_mlp() -> None:
    wide = {**CONFIG, "model": {**CONFIG["model"], "mlp_scale": 8}}
    shape = batch_shape(64, 4)
    more = memory_fit.footprint(ARRAYS, wide, shape, 4).activations
    # 17 of the model's width, and 4 for each unit of the ratio of the widths; and a layer's input each.
    assert more * (LAYERS + 33) == memory_fit.footprint(ARRAYS, CONFIG, shape, 4).activations * (LAYERS + 49)


def test_half_precision_halves_its_part_of_the_state() -> None:
    narrow = [array(one.name, *zip(one.axes, one.shape, strict=True), dtype="bfloat16") for one in ARRAYS[:2]]
    halved = memory_fit.footprint([*narrow, *ARRAYS[2:]], CONFIG, batch_shape(64, 2), 2)
    full = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, 2), 2)
    assert full.state - halved.state == 2 * (ELEMENTS // 2 + 8)
    for policy in ("bfloat16", "half", "p=bf16"):
        low = {**CONFIG, "trainer": {**CONFIG["trainer"], "mp": policy}}
        assert 2 * memory_fit.footprint(ARRAYS, low, batch_shape(64, 2), 2).activations == full.activations


def test_micro_batches_double_gradients_and_save_activations() -> None:
    single = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, 2), 2)
    cut = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, 2, 4), 2)
    assert cut.gradients == 2 * single.gradients
    assert cut.activations * 8 == single.activations
    assert cut.state == single.state


def test_activations_stored_by_name_are_counted() -> None:
    def stored(value: object) -> int:
        config = {**CONFIG, "model": {**CONFIG["model"], "gradient_checkpointing": value}}
        return memory_fit.footprint(ARRAYS, config, batch_shape(64, 2), 2).activations

    numbers = 32 * 128 * LAYERS * 4  # examples, positions, layers, bytes
    assert stored("attention") - stored(True) == numbers * EMBED
    assert stored("qkv+attention") - stored(True) == numbers * 4 * EMBED
    assert stored("qkv+attention+mlp") - stored(True) == numbers * (4 * EMBED + MLP)
    assert stored("auto") == stored(True), "it takes what has room"


def test_division_leaves_room_for_later_batches() -> None:
    _, footprint = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, None)
    less = int(footprint.total / memory_fit.USABLE) - 1
    fitted, _ = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, less)
    assert fitted.per_device < 32
    now, needed, limit = memory_fit.fitting_division(ARRAYS, CONFIG, [8, 64], 2, less)
    assert (now.per_device, now.accumulation, limit) == (4, 1, fitted.per_device)
    assert needed.total < footprint.total
    assert memory_fit.fitting_division(ARRAYS, CONFIG, [64, 8], 2, less)[::2] == (fitted, fitted.per_device)
    assert memory_fit.fitting_division(ARRAYS, CONFIG, [8, 64], 2, None)[2] is None


def test_plan_names_the_flag_that_removes_a_lower_limit() -> None:
    """The limit may be of a migration to smaller devices."""

    def memory_text(limit: int, *overrides: str, kind: str = "NVIDIA A100-SXM4-80GB") -> str:
        trainer = {**CONFIG["trainer"], "num_train_steps": 100, "per_device_parallelism": limit}
        memory = None if kind == "unknown" else 80 << 30
        accelerators = tuple(Accelerator(index, kind, memory) for index in range(2))
        status = SimpleNamespace(step=3, devices=[{"kind": kind}] * 4)
        ends: Any = SimpleNamespace(
            run=SimpleNamespace(status=status),
            status=status,
            flags=engine_flags(overrides),
            target=SimpleNamespace(hosts=["one"]),
            allocation=None,
        )
        contents: Any = SimpleNamespace(config={**CONFIG, "trainer": trainer}, trainer=trainer, arrays=ARRAYS)
        machine = SimpleNamespace(accelerators=accelerators)
        snapshot: Any = SimpleNamespace(host=lambda _: SimpleNamespace(machine=machine))
        shape, _ = plan_shape.plan_shape(snapshot, Request("r", "one", overrides=overrides), ends, contents)
        return shape.memory.rpartition("; ")[2]

    hint = "without the run's limit up to 32 examples at a time: -- --trainer.per_device_parallelism -1"
    assert memory_text(2) == hint
    assert memory_text(-1) == memory_text(32) == memory_text(2, *hint.split(": -- ")[1].split())
    assert "usable" in memory_text(-1)
    assert memory_text(2, kind="unknown") == "the memory of its devices is not known"


def test_less_memory_lowers_per_device_batch_only() -> None:
    large, footprint = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, None)
    assert (large.per_device, large.accumulation) == (32, 1)
    small, small_footprint = memory_fit.fitting_shape(
        ARRAYS, CONFIG, 64, 2, int(footprint.total / memory_fit.USABLE) - 1
    )
    assert small.per_device * small.accumulation == 32
    assert small.per_device < 32
    assert small_footprint.total <= memory_fit.USABLE * (int(footprint.total / memory_fit.USABLE) - 1)


def test_run_that_does_not_fit_names_enough_devices() -> None:
    with pytest.raises(MidstreamError) as caught:
        memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, 1_500_000)
    assert "does not fit 2 devices of 1.5 MB" in caught.value.message
    assert "state 393 kB" in caught.value.message
    hint = re.fullmatch(r"it fits (\d+) of them; or choose a target with more memory a device", caught.value.hint)
    assert hint
    count = int(hint[1])
    memory_fit.fitting_shape(ARRAYS, CONFIG, 64, count, 1_500_000)  # the number in the hint


@given(st.integers(1, 64), st.sampled_from([2**k for k in range(20, 34)]))
def test_fitting_shape_keeps_the_batch_and_fits(devices: int, memory: int) -> None:
    try:
        shape, footprint = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, devices, memory)
    except MidstreamError:
        return
    assert shape.data_parallel * shape.per_device * shape.accumulation == 64
    assert footprint.total <= memory_fit.USABLE * memory


@pytest.mark.parametrize(
    ("mp", "kind", "refused"),
    [
        ("p=f32,c=bfloat16", "Tesla V100-SXM2-32GB", True),
        ("bf16", "Tesla T4", True),
        ("p=f32,c=bfloat16", "NVIDIA GeForce RTX 2080 Ti", True),
        ("p=f32,c=bfloat16", "NVIDIA GeForce RTX 3090", False),
        ("p=f32,c=bfloat16", "NVIDIA A100-SXM4-80GB", False),
        ("p=f32,c=bfloat16", "TPU v3", False),
        ("p=f32,c=bfloat16", "NVIDIA T400 4GB", False),
        ("f32", "Tesla V100-SXM2-32GB", False),
        ("p=bf16,c=f32", "Tesla V100-SXM2-32GB", False),
        ("p=bf16", "Tesla V100-SXM2-32GB", True),
        ("half", "Tesla V100-SXM2-32GB", False),
        ("no policy", "Tesla V100-SXM2-32GB", False),
        (None, "Tesla V100-SXM2-32GB", False),
    ],
)
def test_bfloat16_is_refused_without_hardware_support(mp: str | None, kind: str, refused: bool) -> None:
    assert bool(memory_fit.check_precision(mp, kind)) is refused


def test_device_memory_falls_back_to_the_data_sheet() -> None:
    assert memory_fit.device_memory("TPU v3", None) == 16 << 30
    assert memory_fit.device_memory("TPU v5 lite", None) == 16 << 30
    assert memory_fit.device_memory("NVIDIA A100", 42) == 42
    assert memory_fit.device_memory("cpu", None) is None
