"""Whether a run fits: the estimate, the shape that follows from it, and the numbers that hardware cannot compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.errors import MidstreamError
from midstream.migrate.planning import memory_fit
from midstream.migrate.planning.batch_shape import batch_shape
from midstream_engine.records import ArrayEntry

REPOSITORY = Path(__file__).parents[2]
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


def test_the_state_is_shared_by_all_devices_and_what_is_not_sharded_lies_on_each():
    for devices in (1, 2, 8):
        held = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, devices), devices)
        assert held.state == 3 * 4 * ELEMENTS // devices + 4 * 8
        assert held.gradients == 4 * (ELEMENTS // devices + 8)


def test_micro_batches_cost_a_second_set_of_gradients_and_save_activations():
    whole = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, 2), 2)
    cut = memory_fit.footprint(ARRAYS, CONFIG, batch_shape(64, 2, 4), 2)
    assert cut.gradients == 2 * whole.gradients
    assert cut.activations * 8 == whole.activations
    assert cut.state == whole.state


def test_less_memory_means_fewer_examples_at_once_at_the_same_batch():
    roomy, held = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, None)
    assert (roomy.per_device, roomy.accumulation) == (32, 1)
    tight, less = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, int(held.total / memory_fit.USABLE) - 1)
    assert tight.per_device * tight.accumulation == 32
    assert tight.per_device < 32
    assert less.total <= memory_fit.USABLE * (int(held.total / memory_fit.USABLE) - 1)


def test_what_does_not_fit_is_refused_with_its_numbers_and_how_many_devices_would_do():
    with pytest.raises(MidstreamError) as caught:
        memory_fit.fitting_shape(ARRAYS, CONFIG, 64, 2, 1_500_000)
    assert "does not fit 2 devices of 1.5 MB" in caught.value.message
    assert "state 393.2 kB" in caught.value.message
    assert caught.value.hint.endswith("a target with more memory a device")
    count = int(caught.value.hint.split()[0])
    memory_fit.fitting_shape(ARRAYS, CONFIG, 64, count, 1_500_000)  # as it says


@given(st.integers(1, 64), st.sampled_from([2**k for k in range(20, 34)]))
def test_a_shape_that_is_chosen_keeps_the_batch_and_fits(devices: int, memory: int):
    try:
        shape, held = memory_fit.fitting_shape(ARRAYS, CONFIG, 64, devices, memory)
    except MidstreamError:
        return
    assert shape.data_parallel * shape.per_device * shape.accumulation == 64
    assert held.total <= memory_fit.USABLE * memory


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
        (None, "Tesla V100-SXM2-32GB", False),
    ],
)
def test_bfloat16_is_refused_where_the_hardware_has_none(mp: str | None, kind: str, refused: bool):
    assert bool(memory_fit.check_precision(mp, kind)) is refused


def test_a_device_that_does_not_tell_its_memory_has_what_its_maker_says():
    assert memory_fit.device_memory("TPU v3", None) == 16 << 30
    assert memory_fit.device_memory("TPU v5 lite", None) == 16 << 30
    assert memory_fit.device_memory("NVIDIA A100", 42) == 42
    assert memory_fit.device_memory("cpu", None) is None


def test_the_estimate_is_near_the_compilers_own_account(tmp_path: Path):
    """On four virtual devices: not under it by more than a tenth, nor over it by more than two thirds."""
    flags = {"hidden_dim": 128, "num_layers": 4, "num_heads": 4, "seq_len": 128}
    trainer = {"train_batch_size": 32, "per_device_parallelism": 4, "jax_compilation_cache_dir": str(tmp_path)}
    words = [word for name, value in flags.items() for word in (f"--model.{name}", str(value))]
    words += [word for name, value in trainer.items() for word in (f"--trainer.{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.rehearse_model", "--config_path",
         str(REPOSITORY / "configs" / "gpt2_tiny.yaml"), *words, "--model.gradient_checkpointing", "true"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])["programs"][0]["memory"]["total"]
    config = {"model": {**flags, "gradient_checkpointing": True}, "trainer": {"mp": "f32"}}
    hidden, layers = flags["hidden_dim"], flags["num_layers"]
    blocks = (("layers", layers), ("embed", hidden), ("mlp", 12 * hidden))  # four of attention, eight of the MLP
    tables = (("vocab", 320 + flags["seq_len"]), ("embed", hidden))
    arrays = [array(f"{tree}/{name}", *axes) for tree in ("model", "optimizer/mu", "optimizer/nu")
              for name, axes in (("blocks", blocks), ("tables", tables))]  # fmt: skip
    held = memory_fit.footprint(arrays, config, batch_shape(32, 4, 4), 4, "cpu")
    assert 0.9 <= held.total / told <= 1.67, (held.describe(), told)
