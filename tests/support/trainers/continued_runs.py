"""Runs of the engine that another trainer continues from a checkpoint in their middle."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import yaml

from midstream_engine.config import load_config
from support.engines.engine_process import train_all

SAVED, LAST = 10, 30
TEXT = "the horses of this stream are changed in the middle, and no step is lost on the way to the other side "
MODELS = {
    "gpt2": {"type": "gpt2", "embed_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0},
    "llama": {"type": "llama", "intermediate_dim": 48, "num_kv_heads": 1},
}
SCHEDULES = {
    "cosine": {"lr_schedule": "cosine", "min_lr_ratio": 0.1, "warmup": 5, "weight_decay": 0.1},
    "linear": {"lr_schedule": "linear", "min_lr_ratio": 0.0, "warmup": 4},
    "constant": {"lr_schedule": "constant", "warmup": 0, "weight_decay": 0.1, "weight_decay_modules": ["embeddings"],
                 "default_weight_decay_mask": True},
    "stable": {"lr_schedule": "linear", "min_lr_ratio": 0.2, "warmup": 4, "decay": 12},
}  # fmt: skip


def configuration(folder: Path, model: str, schedule: str, *, batch: int = 4) -> Path:
    (folder / "text.txt").write_text(TEXT * 200)
    mapping = {
        "data": {"tokenizer": "bytes", "train_urls": [str(folder / "text.txt")],
                 "block_cross_document_attention": False},
        "model": {"seq_len": 32, "hidden_dim": 32, "num_layers": 3, "num_heads": 2, **MODELS[model]},
        "optimizer": {"learning_rate": 5e-3, "beta2": 0.98, **SCHEDULES[schedule]},
        "trainer": {"id": "run", "num_train_steps": LAST, "train_batch_size": batch,
                    "checkpointer": {"keep": [{"every": SAVED}]}},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def trained(folder: Path, config: Path, *, batch: int = 4) -> tuple[dict[int, float], np.ndarray]:
    """Train to the end; return the loss of each update, and all batches [steps, batch, position]."""
    import jax

    import support.engines.jax_devices  # noqa: F401  before haliax
    from midstream_engine.computation.setup import prepare

    codes, log = train_all(folder / "root", [["--config_path", str(config)]])
    assert codes == [0], log
    rows = (folder / "root" / "runs" / "run" / "attempts" / "001" / "metrics.jsonl").read_text().splitlines()
    losses = {int(row["global_step"]) + 1: row["train/loss"] for row in map(json.loads, rows)}
    loaded = load_config(["--config_path", str(config)]).config
    setup = prepare(loaded, str(folder / "root"), None, jax.devices("cpu")[:1])
    batches = [setup.batches.batch(step) for step in range(LAST)]
    assert all(each.loss_mask.sum() == batch * 31 for each in batches)  # the last position has no target, as in Trainer
    return losses, np.stack([each.tokens for each in batches])


def checkpoint(folder: Path) -> Path:
    """Return the checkpoint in the middle of the run that ``trained`` made."""
    return next((folder / "root" / "runs" / "run" / "checkpoints").glob(f"step-{SAVED}-*"))
