"""Memory fit beside the memory that the compiler states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from midstream.migrate.planning import memory_fit
from midstream.migrate.planning.batch_shape import batch_shape
from midstream_engine.records import ArrayEntry
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn


def array(name: str, *axes: tuple[str, int]) -> ArrayEntry:
    return ArrayEntry(name, [axis for axis, _ in axes], [size for _, size in axes], "float32", [], [])


def test_footprint_is_near_the_compilers_number(tmp_path: Path) -> None:
    """On four virtual devices, between 10 % under and 67 % over the compiler's number."""
    flags = {"hidden_dim": 128, "num_layers": 4, "num_heads": 4, "seq_len": 128}
    trainer = {"train_batch_size": 32, "per_device_parallelism": 4, "jax_compilation_cache_dir": str(tmp_path)}
    arguments = [word for name, value in flags.items() for word in (f"--model.{name}", str(value))]
    arguments += [word for name, value in trainer.items() for word in (f"--trainer.{name}", str(value))]
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.rehearse", "--config_path",
         str(CONFIGS / "gpt2_tiny.yaml"), *arguments, "--model.gradient_checkpointing", "true"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout.splitlines()[-1])["programs"][0]["memory"]["total"]
    config = {"model": {**flags, "gradient_checkpointing": True}, "trainer": {"mp": "f32"}}
    hidden, layers = flags["hidden_dim"], flags["num_layers"]
    blocks = (("layers", layers), ("embed", hidden), ("mlp", 12 * hidden))  # four of attention, eight of the MLP
    tables = (("vocab", 320 + flags["seq_len"]), ("embed", hidden))
    arrays = [array(f"{tree}/{name}", *axes) for tree in ("model", "optimizer/mu", "optimizer/nu")
              for name, axes in (("blocks", blocks), ("tables", tables))]  # fmt: skip
    footprint = memory_fit.footprint(arrays, config, batch_shape(32, 4, 4), 4, "cpu")
    assert 0.9 <= footprint.total / compiled <= 1.67, (footprint.describe(), compiled)
