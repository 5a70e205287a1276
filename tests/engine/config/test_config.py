"""Configuration files: accepted, refused, and the messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from midstream_engine import rehearse
from midstream_engine.attempt.attempt_process import run_process
from midstream_engine.config import ConfigError, Gpt2Config, WandbConfig, from_mapping, load_config, yaml_file
from midstream_engine.config.keep_policy import KeepEvery
from midstream_engine.config.tracker import JsonConfig, Labels, NoTrackerConfig, TrackerConfig, labels_of
from midstream_engine.config.trainer import seconds
from midstream_engine.data.__main__ import main as data_command
from midstream_engine.signals import Signals
from support.engines.engine_runs import environment
from support.paths import CONFIGS


def write(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return ["--config_path", str(path)]


def test_config_reads_example_of_guide(tmp_path: Path) -> None:
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
        "trainer.ray.auto_start_cluster",
    ]  # fmt: skip
    assert config.data.cache_dir == "gs://bucket/cache"
    assert config.trainer.tracker == [WandbConfig(project="levanter", tags=["a", "b"])]


def test_config_resolved_reads_back_equal() -> None:
    config = load_config(["--config_path", str(CONFIGS / "gpt2_nano.yaml")]).config
    again = from_mapping(yaml.safe_load(yaml.safe_dump(config.resolved())))
    assert again.config == config
    assert again.notes == []


@pytest.mark.parametrize("name", ["gpt2_nano", "gpt2_tiny", "gpt2_small"])
def test_config_shipped_files_have_no_warnings(name: str) -> None:
    loaded = load_config(["--config_path", str(CONFIGS / f"{name}.yaml")])
    assert (loaded.notes, loaded.warnings) == ([], [])


def test_config_warns_of_warmup_of_one() -> None:
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
        ("trainer:\n  seed: 1\n  seed: 2\n", ["bad.yaml:3", "is given twice"]),
        ("data: !include nowhere.yaml\n", ["bad.yaml:1", "no such file"]),
        ("data: !include bad.yaml\n", ["!include bad.yaml leads back"]),
        ("- a\n", ["bad.yaml:1", "expected keys and values"]),
        ("trainer: {mp: f31}\n", ["trainer.mp", "f31"]),
        ("trainer: {checkpointer: {save_interval: soon}}\n", ["save_interval", "'soon'"]),
        ("trainer: {checkpointer: {keep: [{every: 0}]}}\n", ["keep", "0"]),
        ("trainer: {checkpointer: {save_interval: 4d4}}\n", ["save_interval", "'4d4'"]),
        ("trainer: {checkpointer: {base_path: out/gpt2}}\n", ["bad.yaml:1", "base_path: 'out/gpt2'", "trainer.root"]),
        ("trainer: {initialize_from: a, initialize_model_from: b}\n", ["exclude each other"]),
        ("z_loss_weight: -1\n", ["z_loss_weight: -1.0 is negative"]),
        ("optimizer: {cycles: 2, cycle_length: 10}\n", ["exclude each other"]),
        ("trainer: {per_device_parallelism: 2, per_device_train_parallelism: 2}\n", ["alias"]),
        ("trainer: {num_train_steps: null}\n", ["num_train_steps", "found null"]),
        ("trainer: {id: [a]}\n", ["trainer.id", "expected a text"]),
        ("trainer: {train_batch_size: []}\n", ["train_batch_size", "empty"]),
        ("trainer: {tracker: [wandb]}\n", ["trainer.tracker", "expected keys and values"]),
        ("trainer: {axis_resources: {mlp: {a: b}}}\n", ["trainer.axis_resources.mlp", "expected a text"]),
        ("trainer: {profiler_start_step: -3}\n", ["profiler_start_step", "negative"]),
        ("trainer: {distributed: {process_id: 3}}\n", ["coordinator_address", "missing"]),
        ("data: {train_urls: {a: b}}\n", ["data.train_urls", "expected a text"]),
        ("data: {num_tokenize_workers: null}\n", ["data.num_tokenize_workers", "found null"]),
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
        ("model: {type: [gpt2]}\n", ["model.type", "['gpt2']", "nearest: gpt2"]),
        ("model: {type: {gpt2: 1}}\n", ["model.type", "is not known"]),
        ("model: {type: llama, rope: {type: [default]}}\n", ["model.rope.type", "nearest: default"]),
        ("trainer: {jax_config: " + "[" * 60 + "]" * 60 + "}\n", ["bad.yaml:1", "nested more than 50 levels"]),
        ("trainer: {jax_config: " + "[" * 3000 + "]" * 3000 + "}\n", ["bad.yaml:1", "nested more than 50 levels"]),
        ("trainer:\n  jax_config: &a\n    b: *a\n", ["bad.yaml:2", "an alias stands for a value that contains it"]),
        ("trainer: {train_urls: &a [*a]}\n", ["bad.yaml:1", "an alias stands for a value that contains it"]),
        ("trainer:\n  seed: " + "7" * 5000 + "\n", ["bad.yaml:2", "7... is no integer of 64 bits"]),
        ("trainer: {seed: 9223372036854775808}\n", ["bad.yaml:1", "9223372036854775808 is no integer of 64 bits"]),
        ("trainer: {seed: !!int x}\n", ["bad.yaml:1", "x is no integer"]),
        ("trainer: {seed: !!timestamp x}\n", ["bad.yaml:1", "x does not fit the tag"]),
        ("data: {train_urls: !!set {a, b}}\n", ["bad.yaml:1", "set is not supported"]),
        ("trainer: {jax_config: {[a]: 1}}\n", ["bad.yaml:1", "a key is a text"]),
        ('trainer: {log_dir: "a\\0b"}\n', ["bad.yaml:1", "has a null byte"]),
        ('trainer: {log_dir: "\\ud800"}\n', ["bad.yaml:1", "half of a surrogate pair"]),
        ('trainer: {log_dir: "\\Uffffffff"}\n', ["bad.yaml:1", "malformed YAML"]),
        ('trainer: !include "a\\0b"\n', ["x00b' is no path"]),
        ('data: {tokenizer: "\\e[2J", max_bytes: -1}\n', ["data.max_bytes", "-1"]),
        ('model: {type: "\\e[2J"}\n', ["model.type", "x1b[2J"]),
        ("optimizer: {skip_bad_steps: {rolling_interval_length: x}}\n", ["optimizer.skip_bad_steps", "'x'"]),
        ("optimizer: {skip_bad_steps: {sigma_factor: null}}\n", ["optimizer.skip_bad_steps", "None"]),
    ],
)
def test_config_mistake_is_one_line_with_location(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path / "bad.yaml", text))
    message = str(caught.value)
    assert "\n" not in message
    for part in said:
        assert part in message


def test_config_aliases_that_expand_exponentially_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    text = "trainer:\n  jax_config:\n    " + "\n    ".join(lines) + "\n"
    with pytest.raises(ConfigError, match=r"bad.yaml:8: its aliases stand for more than 1000000 values"):
        load_config(write(tmp_path / "bad.yaml", text))


def test_config_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["--model.type", "x" * 100_000])
    assert "model.type: 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 1100


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{a: 1, a: 2}", "--trainer.jax_config: 'a' is given twice (first at --trainer.jax_config)"),
        ("[" * 3000, "--trainer.jax_config: nested more than 50 levels deep"),
        ("&a [*a]", "--trainer.jax_config: an alias stands for a value that contains it"),
        ("1" * 5000, "--trainer.jax_config: 1111"),
        ("{a: [}", "--trainer.jax_config: malformed YAML"),
        ("a\x00", "--trainer.jax_config: malformed YAML"),
    ],
)
def test_config_mistake_in_a_flag_names_the_flag(value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["--trainer.jax_config", value])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("trainer.seed", "[1]", "--trainer.seed: Couldn't parse '[1]' into a int"),
        ("data.enforce_eos", "false", "data.enforce_eos: False is not supported: every document ends with"),
        ("trainer.checkpointer.base_path", "/x", "trainer.checkpointer.base_path: '/x': checkpoints are stored in"),
        (
            "trainer.jax_config.jax_default_prng_impl",
            "rbg",
            "trainer.jax_config.jax_default_prng_impl: rbg: random numbers would depend on the devices; here it is "
            "threefry2x32",
        ),
        (
            "trainer.jax_config.jax_threefry_partitionable",
            "false",
            "trainer.jax_config.jax_threefry_partitionable: false: random numbers would depend on the devices",
        ),
    ],
)
def test_wrong_value_of_a_flag_names_its_key_once(flag: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([f"--{flag}", value])
    assert str(caught.value).startswith(said)
    assert str(caught.value).count(flag) == 1
    assert "()" not in str(caught.value)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("model.layer_norm_epsilon", "-1e-5", "model.layer_norm_epsilon: -1e-05 is negative or no number"),
        ("model.initializer_range", ".nan", "model.initializer_range: nan is negative or no number"),
        ("optimizer.skip_bad_steps", "1000000000000", "optimizer.skip_bad_steps: rolling_interval_length is at least"),
        ("optimizer.skip_bad_steps", "{rolling_interval_length: 1e30}", "optimizer.skip_bad_steps: rolling_interval"),
        ("optimizer.clip_update_norm", "{sigma_factor: .nan}", "optimizer.clip_update_norm: rolling_interval_length"),
        ("optimizer.clip_update_norm", "{rolling_interval_length: 1000000000}", "optimizer.clip_update_norm: rolling"),
    ],
)
def test_number_without_meaning_is_refused(flag: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config([f"--{flag}", value])
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("path", ["a\0b", "\ud800"])
def test_config_path_that_cannot_exist_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match="is no path"):
        load_config(["--config_path", path])


def test_config_merged_keys_are_replaced_by_own_ones(tmp_path: Path) -> None:
    text = "trainer: &t {seed: 3, num_train_steps: 7}\noptimizer: {}\ndata: {}\nmodel: {}\n"
    text += "trainer2: {<<: *t, seed: 4}\n"
    path = tmp_path / "merged.yaml"
    path.write_text(text)
    value = yaml_file.load(str(path))
    assert value["trainer2"] == {"seed": 4, "num_train_steps": 7}


def test_config_dates_are_texts(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path / "run.yaml", "trainer: {id: 2024-05-01, log_dir: 2024-05-01 10:00:00}\n"))
    assert (loaded.config.trainer.id, loaded.config.trainer.log_dir) == ("2024-05-01", "2024-05-01 10:00:00")


@pytest.mark.parametrize("name", ["id", "RUN_ID"])
def test_config_bad_run_id_exits_2_and_writes_nothing(tmp_path: Path, name: str) -> None:
    flags = ["--trainer.id", "a/b"] if name == "id" else ["--trainer.seed", "1"]
    extra = {"RUN_ID": "a/b"} if name == "RUN_ID" else {}
    done = subprocess.run(
        [sys.executable, "-m", "midstream_engine.train", *flags],
        env=environment(tmp_path / "root", 1, extra),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("midstream: trainer.id: run id 'a/b': use 1 to 128 letters")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "root").exists()


def test_config_without_tokenizer_exits_2_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Levanter's default is gpt2's, the bytes of the text would be another model: neither is assumed."""
    flags = ["--data.train_urls", "stdlib:json/*.py", "--trainer.root", str(tmp_path / "root")]
    for command in (lambda flags: run_process(flags, Signals()), rehearse.main, data_command):
        assert command(flags) == 2
        said = capsys.readouterr().err
        assert "data.tokenizer is not given" in said
        assert "tokenizer.json" in said
        assert "bytes" in said
        assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("90s", 90),
        ("15min", 900),
        ("1 hour", 3600),
        ("4d4h", 360000),
        ("1d 2h, 3m4.5s", 93784.5),
        (20, 20),
        ("2w", 1209600),
    ],
)
def test_config_durations_of_several_units(text: str | int, length: float) -> None:
    assert seconds(text, "x") == length


@pytest.mark.parametrize("text", ["", "d", "4d4", "4x", "-5m", "1:30"])
def test_config_duration_without_units_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration"):
        seconds(text, "x")


def test_config_without_interval_saves_no_temporary_checkpoint() -> None:
    trainer = from_mapping({"trainer": {"checkpointer": {"save_interval": None, "keep": None}}}).config.trainer
    assert trainer.checkpointer.policy().kind(7, 1e9, 0.0) is None


def test_config_null_counts_as_absent_beside_another_name() -> None:
    given = {"haps": None, "cycles": [3]}, {"haps": [3], "cycles": None}, {"cycles": None, "haps": [3]}
    assert [from_mapping({"optimizer": one}).config.optimizer.cycles for one in given] == [[3]] * 3
    with pytest.raises(ConfigError, match=r"optimizer\.haps is an alias of optimizer\.cycles: give one of them"):
        from_mapping({"optimizer": {"haps": [3], "cycles": [3]}})


def test_config_warns_of_unknown_axis() -> None:
    (warning,) = load_config(["--trainer.tensor_parallel_axes", "[mpl]"]).warnings
    assert "no model here has an axis 'mpl'" in warning
    assert load_config(["--trainer.tensor_parallel_axes", "[mlp, heads]"]).warnings == []


def test_config_mistake_exits_2_before_importing_jax(tmp_path: Path) -> None:
    arguments = write(tmp_path / "bad.yaml", "trainer:\n  num_train_step: 5\n")
    script = (
        "import sys\nfrom midstream_engine.train import main\ncode = main(sys.argv[1:])\n"
        "assert 'jax' not in sys.modules and 'haliax' not in sys.modules\nsys.exit(code)"
    )
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
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("trackers", "expected"),
    [
        ([], Labels()),
        ([WandbConfig(project="p", tags=["a", "b"])], Labels("p", ("a", "b"))),
        ([JsonConfig(project="p", tags=["a"])], Labels("p", ("a",))),
        (
            [NoTrackerConfig(), JsonConfig(tags=["b"]), WandbConfig(project="q", tags=["b", "c"])],
            Labels("q", ("b", "c")),
        ),
    ],
)
def test_labels_of_a_run_are_those_of_its_trackers(trackers: list[TrackerConfig], expected: Labels) -> None:
    assert labels_of(trackers) == expected
