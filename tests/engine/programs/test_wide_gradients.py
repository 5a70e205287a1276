"""Gradients that are summed in float32 while the model computes in bfloat16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from midstream_engine.checkpoint.array_names import flatten
from midstream_engine.computation.programs import compile_step
from midstream_engine.computation.setup import prepare
from midstream_engine.config import ConfigError, load_config
from midstream_engine.config.trainer import TrainerConfig
from support.engines.train_states import update
from support.paths import CONFIGS

pytestmark = [
    # haliax 1.4 uses names that jax 0.10 deprecates.
    pytest.mark.filterwarnings("ignore:jax.core.is_constant_dim is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources is deprecated:DeprecationWarning"),
]
WIDE = ("--trainer.gradient_reduce_dtype", "float32")
MOMENTS = "/mu/"  # of Adam: after one update a part of the gradient


def gradients(root: Path, name: str, devices: int, *flags: str) -> dict[str, np.ndarray[Any, Any]]:
    """The gradients of the first update on so many devices, times a number."""
    given = ["--config_path", str(CONFIGS / name), "--trainer.mp", "p=f32,c=bfloat16", *flags]
    setup = prepare(load_config(given).config, str(root), None, jax.devices()[:devices])
    state, _ = update(setup, compile_step(setup), setup.fresh_state(), 0, setup.batches.batch(0))
    return {name: np.asarray(array.value) for name, array in flatten(state).items() if MOMENTS in name}


def difference(found: dict[str, np.ndarray[Any, Any]], wanted: dict[str, np.ndarray[Any, Any]]) -> float:
    """The largest difference of an array, relative to its largest number."""
    assert found.keys() == wanted.keys()
    assert wanted
    return max(float(np.abs(found[name] - wanted[name]).max() / np.abs(wanted[name]).max()) for name in wanted)


@pytest.mark.drawn
@pytest.mark.parametrize("name", ["llama_tiny.yaml", "gpt2_tiny.yaml"])
def test_float32_sums_do_not_depend_on_the_devices(tmp_path: Path, name: str) -> None:
    alone, eight = (gradients(tmp_path, name, devices, *WIDE) for devices in (1, 8))
    narrow = gradients(tmp_path, name, 8)
    assert difference(narrow, alone) > 5e-3, "the devices' sums were rounded to 8 bits"
    # The activations of GPT-2 are rounded in another order on one device.
    assert difference(eight, alone) < (2e-3 if name.startswith("gpt2") else 1e-5)


@pytest.mark.drawn
def test_float32_computation_is_not_changed(tmp_path: Path) -> None:
    float32 = ("--trainer.mp", "f32", "--model.num_layers", "1")
    plain = gradients(tmp_path, "llama_tiny.yaml", 2, *float32)
    wide = gradients(tmp_path, "llama_tiny.yaml", 2, *float32, *WIDE)
    assert all(np.array_equal(wide[name], plain[name]) for name in plain)


def test_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer.gradient_reduce_dtype: 'bfloat16' is neither float32 nor null"):
        TrainerConfig(gradient_reduce_dtype="bfloat16")
