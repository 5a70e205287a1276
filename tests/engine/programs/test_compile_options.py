"""Options of the compiler, phases of a reduce-scatter and sizes of blocks: by accelerator, and in the configuration."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from midstream_engine.computation.compile_options import compile_options
from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.setup import make_plan
from midstream_engine.config import ConfigError, load_config
from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.models import loss
from midstream_engine.models.sharding import batch_sum
from midstream_engine.models.splash import block_size
from midstream_engine.runtime.mesh import Layout, build_layout
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]

SUMS = "xla_gpu_reduce_scatter_combine_threshold_bytes"
GPU_GATHERS = "xla_gpu_all_gather_combine_threshold_bytes"
GATHERS = "xla_tpu_enable_windowed_einsum_for_all_gather"


class Chip:
    """A TPU's device, as far as a layout reads it."""

    platform = "tpu"

    def __init__(self, kind: str, place: tuple[int, int, int], core: int = 0) -> None:
        self.device_kind, self.coords, self.core_on_chip = kind, list(place), core


def slice_of(kind: str, sides: tuple[int, int, int], cores: int = 1, model: int = 1) -> Layout:
    chips: list[Any] = [Chip(kind, place, core) for place in np.ndindex(*sides) for core in range(cores)]
    mesh: Any = type("SliceMesh", (), {})()
    mesh.devices = np.array(chips, object).reshape(-1, model)
    mesh.shape = {"data": len(chips) // model, "model": model}
    return Layout(mesh, {"embed": ("data",)}, {"batch": ("data",)}, "batch")


def test_options_follow_the_accelerator_and_the_mesh() -> None:
    cpu = build_layout(TrainerConfig(), jax.devices()[:2])
    assert compile_options(cpu, {}) == {}
    v5e, v6e = slice_of("TPU v5 lite", (4, 4, 1)), slice_of("TPU v6 lite", (4, 4, 1))
    assert compile_options(v5e, {}) == {GATHERS: "False"}
    assert set(compile_options(v6e, {})) > {GATHERS, "xla_enable_async_all_gather"}
    assert compile_options(slice_of("TPU v6e", (4, 4, 1)), {}) == compile_options(v6e, {})
    assert compile_options(slice_of("TPU v5 lite", (1, 1, 1)), {}) == {}, "nothing is gathered"
    assert compile_options(slice_of("TPU v9", (4, 4, 1)), {}) == {}


def test_gpus_send_large_arrays_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chip, "platform", "gpu")
    eight, many, alone = (slice_of("NVIDIA H100 80GB HBM3", (number, 1, 1)) for number in (8, 64, 1))
    assert compile_options(eight, {}) == {SUMS: "1048576", GPU_GATHERS: "1048576"}, "a device's share of 8 MiB"
    assert compile_options(many, {}) == {SUMS: "131072", GPU_GATHERS: "131072"}
    assert compile_options(eight, {SUMS: 0})[SUMS] == "0"
    assert compile_options(eight, {SUMS: None, GATHERS: True}) == {GPU_GATHERS: "1048576"}
    assert compile_options(alone, {}) == {}, "nothing is summed over devices"


def test_configured_options_are_merged_over_the_table() -> None:
    v5e = slice_of("TPU v5 lite", (4, 4, 1))
    assert compile_options(v5e, {GATHERS: True}) == {GATHERS: "True"}
    assert compile_options(v5e, {GATHERS: "true", "xla_x": 3}) == {GATHERS: "True", "xla_x": "3"}
    assert compile_options(v5e, {GATHERS: None, "xla_gpu_autotune_level": 0}) == {}
    cpu = build_layout(TrainerConfig(), jax.devices()[:1])
    assert compile_options(cpu, {GATHERS: True, "xla_cpu_enable_fast_math": False}) == {
        "xla_cpu_enable_fast_math": "False"
    }
    with pytest.raises(ConfigError, match=r"trainer.compiler_options.xla_x: \[1\] is no number, text"):
        TrainerConfig(compiler_options={"xla_x": [1]})


def test_refused_option_is_a_configuration_error() -> None:
    flags = ["--config_path", str(CONFIGS / "llama_tiny.yaml"), "--trainer.compiler_options.xla_no_such", "1"]
    config = load_config(flags).config
    with pytest.raises(ConfigError, match=r"trainer.compiler_options.xla_no_such: .* no such option or value"):
        compile_step(make_plan(config, jax.devices()[:2]))


@pytest.mark.parametrize(
    ("sides", "cores", "model", "phases"),
    [
        ((4, 4, 1), 1, 1, (4, 4)),
        ((2, 2, 2), 1, 1, (2, 2, 2)),
        ((2, 2, 1), 2, 1, (2, 2, 2)),
        ((2, 4, 1), 1, 1, ()),  # a ring
        ((8, 1, 1), 1, 1, ()),
        ((4, 4, 1), 1, 2, ()),  # the data axis is no box of chips
    ],
)
def test_phases_are_the_sides_of_a_slice(
    sides: tuple[int, int, int], cores: int, model: int, phases: tuple[int, ...]
) -> None:
    assert slice_of("TPU v5 lite", sides, cores, model).phases == phases
    assert slice_of("TPU7x", sides, cores, model).phases == phases


def test_sum_in_phases_gives_each_device_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = build_layout(TrainerConfig(), jax.devices()[:8])
    parts = jnp.asarray(np.random.default_rng(0).integers(-9, 9, (8, 3, 32)), jnp.float32)

    def summed() -> Any:
        with layout.active():
            return jax.jit(lambda parts: batch_sum(parts, ("vocab", "embed")))(parts)

    expected = summed()
    assert expected.sharding.shard_shape(expected.shape) == (3, 4)
    for phases in ((2, 4), (4, 2), (2, 2, 2)):
        monkeypatch.setattr(Layout, "phases", phases)
        found = summed()
        assert found.sharding.is_equivalent_to(expected.sharding, 2)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(parts).sum(0))


def test_largest_block_follows_the_memory_up_to_a_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "mesh_platform", lambda: "cpu")
    assert loss.largest_block() == loss.MAX_BLOCK
    monkeypatch.setattr(loss, "mesh_platform", lambda: "tpu")
    kinds = {
        "TPU v2": 1 << 27,
        "TPU v5 lite": 1 << 28,
        "TPU v6 lite": 1 << 28,
        "TPU v5": 1 << 28,
        "NVIDIA H100 80GB HBM3": 1 << 28,
        "unknown": 1 << 28,
    }
    for kind, numbers in kinds.items():
        monkeypatch.setattr(loss, "mesh_device_kind", lambda kind=kind: kind)
        assert loss.largest_block() == numbers


def test_splash_blocks_are_larger_in_16_bits() -> None:
    assert block_size(4096, None) == 512
    assert block_size(4096, None, narrow=True) == 1024
    assert block_size(1536, None, narrow=True) == 512
    assert block_size(4096, 256, narrow=True) == 256
