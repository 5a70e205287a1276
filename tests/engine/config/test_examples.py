"""The examples of the configuration guide parse and train; training learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from midstream_engine.config import load_config
from support.engines.engine_process import train_all
from support.paths import CONFIGS

pytestmark = pytest.mark.drawn

EXAMPLES = sorted(path.stem for path in (CONFIGS / "examples").glob("*.yaml") if path.stem != "data")
TINY = [
    "--model.seq_len", "16", "--model.hidden_dim", "16", "--model.num_layers", "1", "--model.num_heads", "2",
    "--data.tokenizer", "bytes", "--data.train_urls", "stdlib:json/*.py",
    "--data.validation_urls", "stdlib:json/tool.py",
    "--trainer.num_train_steps", "2", "--trainer.max_eval_batches", "1", "--data.cache_dir", "null",
]  # fmt: skip
SHRUNK = {
    "gpt2_openwebtext": ["--trainer.train_batch_size", "8"],
    "batch_schedule": ["--trainer.train_batch_size", "[{start: 0, value: 2}, {start: 1, value: 4}]"],
    "wsd_s": ["--optimizer.cycles", "[1]", "--optimizer.warmup", "0"],
}


def arguments(name: str, *more: str) -> list[str]:
    return ["--config_path", str(CONFIGS / "examples" / f"{name}.yaml"), *more]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_parses_without_warning(name: str) -> None:
    loaded = load_config(arguments(name))
    assert (loaded.warnings, loaded.notes) == ([], [])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """All examples and one run that overfits, in one process."""
    root = tmp_path_factory.mktemp("root")
    text = root / "rhyme.txt"
    text.write_text("Don't change horses in midstream, said the man who had but one horse. " * 2)
    runs = [
        arguments(
            name, *TINY, *SHRUNK.get(name, ["--trainer.train_batch_size", "4"]), "--trainer.id", name,
            "--trainer.jax_compilation_cache_dir", str(root / "cache"),
        )
        for name in EXAMPLES
    ]  # fmt: skip
    runs.append([
        "--config_path", str(CONFIGS / "gpt2_tiny.yaml"), "--trainer.id", "overfit", "--data.train_urls", str(text),
        "--trainer.num_train_steps", "150", "--trainer.train_batch_size", "4", "--optimizer.learning_rate", "1e-2",
        "--optimizer.weight_decay", "0",
    ])  # fmt: skip
    codes, log = train_all(root, runs, cwd=root, WANDB_MODE="offline", WANDB_SILENT="true")
    assert codes == [0] * len(runs), log
    return root, log


def rows(root: Path, run: str) -> list[dict[str, Any]]:
    path = root / "runs" / run / "attempts" / "001" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_trains(trained: tuple[Path, str], name: str) -> None:
    found = rows(trained[0], name)
    assert [row["global_step"] for row in found] == [0, 1]
    assert all(0 < row["train/loss"] < 7 for row in found)
    assert 0 < found[-1]["eval/loss"] < 7


def test_example_trackers_write_their_files(trained: tuple[Path, str]) -> None:
    root, log = trained
    for name in ("gpt2_openwebtext", "wandb", "wandb_default", "two_trackers"):
        assert list((root / "runs" / name / "attempts" / "001" / "wandb").glob("offline-run-*/*.wandb")), log
    for name in ("tensorboard", "two_trackers"):
        assert list((root / "logs" / name).glob("events.*")), log
    assert "failed, metrics go to" not in log


def test_example_batch_schedule_reads_data_without_gap(trained: tuple[Path, str]) -> None:
    found = rows(trained[0], "batch_schedule")
    assert [row["throughput/total_tokens"] for row in found] == [2 * 16, (2 + 4) * 16]


def test_example_small_text_is_memorized(trained: tuple[Path, str]) -> None:
    losses = [row["train/loss"] for row in rows(trained[0], "overfit")]
    assert losses[0] > 4
    assert losses[-1] < 0.1
