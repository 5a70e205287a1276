"""Memory fit beside the memory that the compiler states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.planning import memory_fit
from midstream.migrate.planning.batch_shape import batch_shape
from midstream_core.records import ArrayEntry
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn


def array(name: str, *axes: tuple[str, int]) -> ArrayEntry:
    return ArrayEntry(name, [axis for axis, _ in axes], [size for _, size in axes], "float32", [], [])


GPT2 = {"hidden_dim": 128, "num_layers": 4, "num_heads": 4, "seq_len": 128}
LLAMA = {**GPT2, "type": "llama", "num_kv_heads": 2, "intermediate_dim": 352}


@pytest.mark.parametrize(
    ("model", "vocabulary"),
    [
        ({**GPT2, "gradient_checkpointing": True}, 320),
        ({**LLAMA, "gradient_checkpointing": True}, 320),
        ({**LLAMA, "gradient_checkpointing": False}, 320),
        ({**GPT2, "gradient_checkpointing": True}, 8192),
    ],
    ids=["gpt2", "llama", "llama-stored", "large-vocabulary"],
)
def test_footprint_is_near_the_compilers_number(model: dict[str, Any], vocabulary: int, tmp_path: Path) -> None:
    """On four virtual devices, between 10 % under and 67 % over the compiler's number."""
    trainer = {"train_batch_size": 32, "per_device_parallelism": 4, "jax_compilation_cache_dir": str(tmp_path)}
    words = {"<|endoftext|>": vocabulary - 1, **{f"w{number}": number for number in range(vocabulary - 1)}}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(json.dumps({"model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}}))
    flags = {f"model.{name}": value for name, value in model.items()} | {"data.tokenizer": str(tokenizer)}
    flags |= {f"trainer.{name}": value for name, value in trainer.items()}
    kind = str(model.get("type", "gpt2"))
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.rehearse", "--config_path", str(CONFIGS / f"{kind}_tiny.yaml"),
         *(word for name, value in flags.items() for word in (f"--{name}", json.dumps(value)))],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    compiled = json.loads(done.stdout.splitlines()[-1])["programs"][0]["memory"]["total"]
    config = {"model": model, "trainer": {"mp": "f32"}}
    hidden, layers = model["hidden_dim"], model["num_layers"]
    # Of attention and of the MLP.
    width = 12 * hidden if kind == "gpt2" else 3 * hidden + 3 * model["intermediate_dim"]
    blocks = (("layers", layers), ("embed", hidden), ("mlp", width))
    tables = [("tokens", (("vocab", vocabulary), ("embed", hidden)))]
    tables += [("positions", (("position", model["seq_len"]), ("embed", hidden)))] if kind == "gpt2" else []
    tables += [("head", (("vocab", vocabulary), ("embed", hidden)))] if kind == "llama" else []
    arrays = [array(f"{tree}/{name}", *axes) for tree in ("model", "optimizer/mu", "optimizer/nu")
              for name, axes in (("blocks", blocks), *tables)]  # fmt: skip
    footprint = memory_fit.footprint(arrays, config, batch_shape(32, 4, 4), 4, "cpu")
    assert 0.9 <= footprint.total / compiled <= 1.67, (footprint.describe(), compiled)
