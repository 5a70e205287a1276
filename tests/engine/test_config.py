"""The configuration: what is accepted, what is refused, and how that is said."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from midstream_engine.checkpoint.saving.retention import KeepEvery
from midstream_engine.config import ConfigError, Gpt2Config, WandbConfig, from_mapping, load_config
from support.engine_runs import CONFIGS, environment


def write(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return ["--config_path", str(path)]


def test_the_guides_example_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text('train_urls: ["a.{1..3}.jsonl"]\ncache_dir: "gs://bucket/cache"\n')
    arguments = write(
        tmp_path / "run.yaml",
        """
data: !include data.yaml
model: {type: gpt2, hidden_dim: 96, num_heads: 12, scale_attn_by_inverse_layer_idx: true}
trainer:
  tracker: {type: wandb, project: "levanter", tags: [a, b]}
  ray: {auto_start_cluster: false}
  mp: p=f32,c=bfloat16
  per_device_train_parallelism: 4
  fsdp_axis: embed
  axis_resources: {mlp: model}
  checkpointer:
    base_path: checkpoints/
    save_interval: 5m
    keep:
      - {every: 1000, until: 10000}
      - {every: 10000}
optimizer: {learning_rate: 6E-4, min_lr_ratio: 0.1}
""",
    )
    loaded = load_config([*arguments, "--trainer.num_train_steps", "77", "--optimizer.beta2=9e-1"])
    config = loaded.config
    assert config.data.train_urls == ["a.{1..3}.jsonl"]
    assert isinstance(config.model, Gpt2Config)
    assert config.trainer.per_device_parallelism == 4
    assert config.trainer.axis_resources == {"mlp": ["model"]}
    assert config.trainer.checkpointer.keep == [KeepEvery(1000, 10000), KeepEvery(10000)]
    assert config.trainer.checkpointer.policy().save_interval == 300
    assert config.trainer.num_train_steps == 77
    assert config.optimizer.learning_rate == 6e-4
    assert sorted(note.split(": ")[1].split()[0] for note in loaded.notes) == [
        "trainer.checkpointer.base_path", "trainer.ray",
    ]  # fmt: skip
    assert config.data.cache_dir == "gs://bucket/cache"
    assert config.trainer.tracker == [WandbConfig(project="levanter", tags=["a", "b"])]


def test_the_resolved_configuration_reads_back_as_the_same() -> None:
    config = load_config(["--config_path", str(CONFIGS / "gpt2_nano.yaml")]).config
    again = from_mapping(yaml.safe_load(yaml.safe_dump(config.resolved())))
    assert again.config == config
    assert again.notes == []


@pytest.mark.parametrize("name", ["gpt2_nano", "gpt2_tiny", "gpt2_small"])
def test_the_shipped_configurations_are_clean(name: str) -> None:
    loaded = load_config(["--config_path", str(CONFIGS / f"{name}.yaml")])
    assert (loaded.notes, loaded.warnings) == ([], [])


def test_a_warmup_of_one_is_pointed_out() -> None:
    assert "100 %" in load_config(["--optimizer.warmup", "1"]).warnings[0]
    assert load_config(["--optimizer.warmup", "2"]).warnings == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  hidden_dim: 64\n  num_head: 4\n", ["bad.yaml:3", "model.num_head", "nearest: model.num_heads"]),
        ("trainer:\n  seed: 0\n bad\n", ["bad.yaml:", "malformed YAML"]),
        ("trainer: {seed: [}\n", ["bad.yaml:1", "malformed YAML"]),
        ("model:\n  type: gtp2\n", ["model.type", "nearest: gpt2"]),
        ("trainer:\n  num_train_steps: many\n", ["bad.yaml:2", "trainer.num_train_steps", "many"]),
        ("trainer:\n  seed: 1\n  seed: 2\n", ["bad.yaml:3", "stands twice"]),
        ("data: !include nowhere.yaml\n", ["bad.yaml:1", "no such file"]),
        ("data: !include bad.yaml\n", ["!include leads back"]),
        ("- a\n", ["bad.yaml:1", "expected keys and values"]),
        ("trainer: {mp: f31}\n", ["trainer.mp", "f31"]),
        ("trainer: {checkpointer: {save_interval: soon}}\n", ["save_interval", "'soon'"]),
        ("trainer: {checkpointer: {keep: [{every: 0}]}}\n", ["keep", "0"]),
        ("optimizer: {cycles: 2, cycle_length: 10}\n", ["exclude each other"]),
        ("trainer: {per_device_parallelism: 2, per_device_train_parallelism: 2}\n", ["another name"]),
        ("trainer: {num_train_steps: null}\n", ["num_train_steps", "found null"]),
        ("trainer: {id: [a]}\n", ["trainer.id", "expected a text"]),
        ("trainer: {train_batch_size: []}\n", ["train_batch_size", "empty"]),
        ("trainer: {tracker: [wandb]}\n", ["trainer.tracker", "expected keys and values"]),
        ("trainer: {axis_resources: {mlp: {a: b}}}\n", ["trainer.axis_resources.mlp", "expected a text"]),
        ("trainer: {profiler_start_step: -3}\n", ["profiler_start_step", "negative"]),
        ("trainer: {distributed: {process_id: 3}}\n", ["coordinator_address", "missing"]),
        ("data: {train_urls: {a: b}}\n", ["data.train_urls", "expected a text"]),
        ("data: {tokenizer: null}\n", ["data.tokenizer", "found null"]),
        ("data: {block_cache_bytes: 64GB}\n", ["bad.yaml:1", "block_cache_bytes", "64GB"]),
        ("model: {seq_len: true}\n", ["model.seq_len", "expected a number"]),
        ("model: {type: llama, num_kv_heads: 3}\n", ["num_kv_heads", "does not divide"]),
        ("optimizer: {learning_rate: .inf}\n", ["learning_rate", "inf"]),
        ("optimizer: {cycles: 0}\n", ["optimizer.cycles", "0"]),
        ("optimizer: {cycles: [a]}\n", ["optimizer.cycles", "list of steps"]),
        ("optimizer: {cycle_length: x}\n", ["optimizer.cycle_length", "'x'"]),
        ("optimizer: {cycle_length: [x]}\n", ["optimizer.cycle_length", "list"]),
        ("optimizer: {beta1: 2}\n", ["optimizer.beta1", "[0, 1)"]),
        ("optimizer: {max_grad_norm: -1}\n", ["max_grad_norm", "negative"]),
        ("optimizer: {weight_decay_modules: '('}\n", ["weight_decay_modules", "no regular expression"]),
        ("optimizer: {weight_decay_modules: 5}\n", ["weight_decay_modules", "list of names"]),
    ],
)
def test_a_mistake_is_one_line_that_says_where(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "bad.yaml", text))
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message


def test_an_axis_that_no_model_has_is_pointed_out() -> None:
    (warning,) = load_config(["--trainer.tensor_parallel_axes", "[mpl]"]).warnings
    assert "no model here has an axis 'mpl'" in warning
    assert load_config(["--trainer.tensor_parallel_axes", "[mlp, heads]"]).warnings == []


def test_the_program_answers_a_mistake_at_once_with_exit_code_2(tmp_path: Path) -> None:
    arguments = write(tmp_path / "bad.yaml", "trainer:\n  num_train_step: 5\n")
    script = (
        "import sys\nfrom midstream_engine.train import main\ncode = main(sys.argv[1:])\n"
        "assert 'jax' not in sys.modules and 'haliax' not in sys.modules\nsys.exit(code)"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment(tmp_path / "root", 1),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "bad.yaml:2" in done.stderr
    assert "trainer.num_train_steps" in done.stderr
    assert time.monotonic() - began < 10  # a fraction of a second, but for a crowded machine
    assert not (tmp_path / "root").exists()
