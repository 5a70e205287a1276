"""The Trainer of transformers resumes what the engine exported, and the engine what Trainer saved.

Both train the same batches. The greatest relative difference of a loss is stated below: float32 on a CPU sums in
another order, and Trainer divides by the norm + 1e-6 where it clips.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from midstream_core.records import read_json
from midstream_engine.config import load_config
from midstream_engine.convert import main
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.tensor_files import read_tensors
from support.engines.engine_process import train_all
from support.paths import FIXTURES
from support.trainers.trainer_processes import finished, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_trainers]
SAVED, LAST = 10, 30
BOUND = 2e-6  # relative
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


def convert(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


def configuration(folder: Path, model: str, schedule: str) -> Path:
    (folder / "text.txt").write_text(TEXT * 200)
    mapping = {
        "data": {"tokenizer": "bytes", "train_urls": [str(folder / "text.txt")],
                 "block_cross_document_attention": False},
        "model": {"seq_len": 32, "hidden_dim": 32, "num_layers": 3, "num_heads": 2, **MODELS[model]},
        "optimizer": {"learning_rate": 5e-3, "beta2": 0.98, **SCHEDULES[schedule]},
        "trainer": {"id": "run", "num_train_steps": LAST, "train_batch_size": 4,
                    "checkpointer": {"keep": [{"every": SAVED}]}},
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(mapping))
    return path


def trained(folder: Path, config: Path) -> tuple[dict[int, float], np.ndarray]:
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
    assert all(batch.loss_mask.sum() == 4 * 31 for batch in batches)  # the last position has no target, as in Trainer
    return losses, np.stack([batch.tokens for batch in batches])


@pytest.mark.parametrize(
    ("model", "schedule"), [("gpt2", "cosine"), ("llama", "linear"), ("llama", "constant"), ("gpt2", "stable")]
)
def test_trainer_resumes_an_export(tmp_path: Path, model: str, schedule: str) -> None:
    losses, batches = trained(tmp_path, configuration(tmp_path, model, schedule))
    np.save(tmp_path / "batches.npy", batches)
    checkpoint = next((tmp_path / "root" / "runs" / "run" / "checkpoints").glob(f"step-{SAVED}-*"))
    out = tmp_path / "out"
    convert(checkpoint, out, "--to", "huggingface-trainer")
    steps = finished(
        tmp_path, "train_causal.py", "resumed", "batches.npy", "--resume", str(out / f"checkpoint-{SAVED}"), "--ours"
    )
    assert sorted(steps) == list(range(SAVED + 1, LAST + 1))
    assert losses[LAST] < 0.9 * losses[SAVED]  # the comparison means something
    differing = {number: abs(step.loss - losses[number]) / losses[number] for number, step in steps.items()}
    assert max(differing.values()) <= BOUND, differing


def arrays_of(checkpoint: Path) -> dict[str, np.ndarray]:
    """Return weights and moments of a checkpoint of Trainer, by what they are."""
    optimizer = TorchFile(str(checkpoint / "optimizer.pt")).value
    moments = {
        f"{index}/{name}": tensor.read()
        for index, entry in optimizer["state"].items()
        for name, tensor in entry.items()
    }
    return {**read_tensors(str(checkpoint)), **moments}


@pytest.mark.parametrize("model", ["gpt2", "llama2", "neox-parallel"])
def test_round_trip_of_a_checkpoint_of_trainer(tmp_path: Path, model: str) -> None:
    """From Trainer here and back: each array, the groups and the scheduler are equal bit by bit."""
    out = tmp_path / "out"
    out.mkdir()
    source = FIXTURES / "hf" / model
    described = read_json(str(source / "config.json"))
    length = described.get("max_position_embeddings") or described["n_positions"]
    rows = np.random.default_rng(3).integers(described["vocab_size"], size=(12, 4, min(16, length)))
    np.save(tmp_path / "batches.npy", rows)
    (out / "training_arguments.json").write_text(json.dumps({
        "max_steps": 12, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3,
        "weight_decay": 0.1, "adam_beta2": 0.95, "warmup_steps": 3, "max_grad_norm": 0.5, "seed": 5, "save_steps": 5,
        "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    }))  # fmt: skip
    finished(tmp_path, "train_causal.py", "out", "batches.npy", "--model", str(source))
    theirs, back = out / "checkpoint-5", tmp_path / "back" / "checkpoint-5"
    (out / "training_arguments.json").unlink()  # training_args.bin has them
    convert(theirs, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back", "--to", "huggingface-trainer")
    before, after = arrays_of(theirs), arrays_of(back)
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    for name, key in (("optimizer.pt", "param_groups"), ("scheduler.pt", "")):
        values = [TorchFile(str(folder / name)).value for folder in (theirs, back)]
        assert values[0][key] == values[1][key] if key else values[0] == values[1]
