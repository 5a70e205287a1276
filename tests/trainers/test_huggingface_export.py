"""The Trainer of transformers resumes what the engine exported, and the engine what Trainer saved.

Both train the same batches. The greatest relative difference of a loss is stated below: float32 on a CPU sums in
another order, and Trainer divides by the norm + 1e-6 where it clips.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from midstream_core.records import read_json
from midstream_engine.convert import main
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.tensor_files import read_tensors
from support.paths import FIXTURES
from support.trainers.continued_runs import LAST, SAVED, checkpoint, configuration, trained
from support.trainers.trainer_processes import finished, needs_trainers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_trainers]
BOUND = 2e-6  # relative


def convert(*arguments: object) -> None:
    assert main([str(argument) for argument in arguments]) == 0


@pytest.mark.parametrize(
    ("model", "schedule"), [("gpt2", "cosine"), ("llama", "linear"), ("llama", "constant"), ("gpt2", "stable")]
)
def test_trainer_resumes_an_export(tmp_path: Path, model: str, schedule: str) -> None:
    losses, batches = trained(tmp_path, configuration(tmp_path, model, schedule))
    np.save(tmp_path / "batches.npy", batches)
    out = tmp_path / "out"
    convert(checkpoint(tmp_path), out, "--to", "huggingface-trainer")
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
