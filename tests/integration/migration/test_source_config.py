"""The run's config: what the target gets, and what needs the user's consent."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet, LocalHostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.migrate.journal.plan import Plan
from midstream.migrate.journal.request import Request
from midstream.migrate.modes.registry import COLD
from midstream.migrate.planning.planner import make_plan
from midstream.migrate.source_config import LIMIT, agreed_config, check_config, parse_config
from midstream.ownership import signed_chain
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from midstream_engine.config.load import from_mapping
from support.commit_seed import commit_seed
from support.paths import REPOSITORY
from support.run_directory import RunDirectory

PLAIN = "model: {seq_len: 8}\ntrainer: {train_batch_size: 4, num_train_steps: 100}\n"


def lines(text: str, stores: tuple[str, ...] = (), given: dict[str, str] | None = None) -> tuple[str, ...]:
    flags = given or {}
    return check_config(parse_config(text, "lab:run.yaml"), "lab", "h100", stores, flags)


@pytest.mark.parametrize(
    "text",
    [
        "trainer: !include /etc/shadow",
        "trainer: {log_dir: !include /root/.ssh/id_ed25519}",
        "data: !!python/object/apply:os.system ['touch /tmp/x']",
        "data: !!python/name:os.system",
        "trainer: {tracker: !!set {/root: null}}",
        "trainer: {log_dir: !!binary L3Jvb3Q=}",
        "trainer: [1, 2]",
        "model: [",
        "- a",
        "just text",
        "a: \x1b[2J",
        "a: &a [*a]",
        "[" * 5000,
        "{a: " * 200 + "b" + "}" * 200,
        "# " + "x" * LIMIT,
    ],
)
def test_config_with_more_than_plain_values_is_refused(text: str) -> None:
    with pytest.raises(MidstreamError) as caught:
        lines(text)
    assert str(caught.value).isprintable()
    assert "run.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "model: {num_layers: many}", "model: {hidden_dim: [64]}", "model: {seq_len: .nan}", "model: {num_heads: {}}",
        "trainer: {model_axis_size: 0}", "trainer: {model_axis_size: 0.5}", "trainer: {num_train_steps: 1.0e+300}",
        "trainer: {per_device_parallelism: -.inf}", "trainer: {fsdp_axis: 5}", "trainer: {tensor_parallel_axes: [[a]]}",
        "trainer: {train_batch_size: []}", "trainer: {train_batch_size: [7]}", "trainer: {train_batch_size: x}",
        "trainer: {train_batch_size: [{start: 0}]}", f"trainer: {{train_batch_size: {10**30}}}",
        "optimizer: {learning_rate: fast}", "optimizer: {warmup: []}", "optimizer: {decay: .inf}",
        "trainer: {axis_resources: [embed]}", "trainer: {compute_axis_resources: {embed: 5}}",
        "trainer: {parameter_axis_resources: {1: data}}", "trainer: {batch_axis: [batch]}", "model: {mlp_scale: wide}",
        "optimizer: {cycles: {}}", "optimizer: {cycle_length: [1, x]}",
    ],
)  # fmt: skip
def test_values_that_a_plan_cannot_compute_with_are_refused(text: str) -> None:
    with pytest.raises(MidstreamError, match=r"^lab:run\.yaml: \w+\.\w+ is .*, which no run can have"):
        lines(text)


@pytest.mark.parametrize(
    "text",
    [
        "model: null\ntrainer: {train_batch_size: [{start: 0, value: 4}, {start: 9, value: 8}]}",
        "optimizer: {learning_rate: 1e-3, warmup: 0.01, cycles: [10, 20], decay: null}",  # text, by YAML 1.1
        "trainer: {parameter_axis_resources: {embed: data, mlp: [model], vocab: null}, axis_resources: {}}",
        "trainer: {per_device_parallelism: -1, tensor_parallel_axes: [mlp, heads], num_train_steps: 10_000}",
    ],
)
def test_values_of_runs_are_accepted(text: str) -> None:
    assert lines(text) == ()


WRITES = "outside of the run's directory: h100 would write there"
RUNS = "outside of the run's directory: h100 would read compiled programs from there and run them"


@pytest.mark.parametrize(
    ("text", "key", "what"),
    [
        ("trainer: {log_dir: /root/.ssh}", "trainer.log_dir: /root/.ssh", WRITES),
        ("trainer: {log_dir: ~/.ssh}", "trainer.log_dir: ~/.ssh", WRITES),
        ("trainer: {log_dir: a/../../../x}", "trainer.log_dir: a/../../../x", WRITES),
        ("trainer: {tracker: [{type: tensorboard, logdir: /etc}]}", "trainer.tracker[0].logdir: /etc", WRITES),
        ("trainer: {tracker: {type: tensorboard, logdir: ../x}}", "trainer.tracker.logdir: ../x", WRITES),
        ("trainer: {wandb: {type: tensorboard, logdir: ../x}}", "trainer.wandb.logdir: ../x", WRITES),
        ("trainer: {tracker: {save_code: /root}}", "trainer.tracker.save_code: /root", "send the code in it"),
        ("trainer: {tracker: {type: tensorboard, filename_suffix: /../x}}", "trainer.tracker.filename_suffix", WRITES),
        (
            "trainer: {jax_config: {jax_compilation_cache_dir: /tmp/c}}",
            "trainer.jax_config.jax_compilation_cache_dir: /tmp/c",
            RUNS,
        ),
        ("trainer: {jax_config: {jax_dump_ir_to: /tmp/c}}", "trainer.jax_config.jax_dump_ir_to: /tmp/c", RUNS),
        ("trainer: {some_day: {new: ['x', '/y']}}", "trainer.some_day.new[1]: /y", WRITES),
        ("data: {some_day: /y}", "data.some_day: /y", WRITES),
    ],
)
def test_path_outside_the_run_needs_consent(text: str, key: str, what: str) -> None:
    (line,) = lines(text)
    assert line.startswith(f"run.yaml of lab sets {key}")
    assert what in line
    name = key.partition(":")[0]
    assert lines(text, given={name: "elsewhere"}) == ()


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "trainer: {log_dir: logs, tracker: [{type: tensorboard, logdir: tb/run}, {type: wandb, save_code: true}]}",
        "data: {train_urls: ['/data/x.jsonl', 'gs://b/y', 'https://h/z', 'stdlib:**/*.py'], tokenizer: /tok}",
        "data: {configs: {a: {train_urls: ['~/x']}}, cache_dir: 'gs://b/c'}",
        "data: {id: /hf/dataset, tokenizer: 'imported:/old/root/data/" + "a" * 64 + "'}",
        "trainer: {load_checkpoint_path: /ckpt, initialize_from: 'gs://b/run', initialize_model_from: /model}",
        "data: {eos_token: '</s>'}",
        "optimizer: {weight_decay_modules: '/.*bias/'}",
    ],
)
def test_read_only_paths_and_run_paths_need_no_consent(text: str) -> None:
    assert lines(text) == ()


def test_shipped_configs_need_no_consent() -> None:
    """Every default written out, as the engine writes run.yaml."""
    for path in sorted(REPOSITORY.joinpath("configs").glob("*.yaml")):
        if not path.name.startswith("fleet"):
            resolved = from_mapping(yaml.safe_load(path.read_text())).config.resolved()
            assert lines(yaml.safe_dump(resolved, sort_keys=False)) == (), path.name


@pytest.mark.parametrize("field", ["coordinator_address", "num_processes", "process_id"])
def test_config_may_not_name_other_processes(field: str) -> None:
    with pytest.raises(MidstreamError, match=f"trainer.distributed.{field}, which only the launcher may set"):
        lines(f"trainer: {{distributed: {{{field}: 'evil:1'}}}}")


def test_checkpoints_in_an_unplanned_bucket_are_refused() -> None:
    text = "trainer: {checkpointer: {base_path: 'gs://evil/x/'}}"
    with pytest.raises(MidstreamError, match="stores checkpoints in gs://evil/x, and the run does not"):
        lines(text)
    assert lines(text, ("gs://evil/x",)) == ()
    assert lines(text, given={"trainer.checkpointer.base_path": "gs://ours"}) == ()


def test_any_value_leaving_the_run_needs_consent() -> None:
    """Unknown fields need consent too: only known paths that are read do not."""
    seed = commit_seed()
    rng = random.Random(seed)
    for _ in range(300):
        value: Any = rng.choice(["/etc/x", "~/x", "../x", "a/../x", "s3://x", "file:///x", "a\\..\\x"])
        keys = [rng.choice(["a", "log_dir", "x.y", "tracker", "0"]) for _ in range(rng.randrange(1, 5))]
        for key in reversed(keys):
            value = [value] if rng.random() < 0.3 else {key: value}
        section = rng.choice(["data", "trainer"])
        config = {section: {"zz": value}}
        found = check_config(config, "lab", "h100", (), {})
        assert len(found) == 1, config


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Path, Host, Callable[..., Plan]]]:
    run = RunDirectory(tmp_path / "a", "r")
    config = Path(run.paths.config)
    config.write_text(PLAIN)
    run.status(1, records.TRAINING, 30)
    run.fence(1, "a")
    signed_chain.first_chain("r", "a", records.first_fence("a")).write(run.paths.ownership)
    train = Path(run.paths.checkpoint(run.checkpoint(20))) / records.TRAIN
    train.write_text('{"state": {"data_digest": ""}, "provenance": {"config": {"data": {}}}}')
    fleet = Fleet({name: LocalHostConfig(root=str(tmp_path / name)) for name in "ab"})
    hosts = HostPool(fleet)

    def plan(*overrides: str) -> Plan:
        request = dataclasses.replace(Request("r", "b", mode=COLD), overrides=overrides)
        return make_plan(hosts, take_snapshot(hosts), request)

    yield config, hosts.get("a"), plan
    hosts.close()


def test_target_gets_exactly_the_agreed_config(world: Any) -> None:
    config, source, plan = world
    harmless = plan()
    assert harmless.policy.consent == ()
    assert agreed_config(source, harmless) == PLAIN
    config.write_text(PLAIN + "data: {block_cache_bytes: 1}\n")
    assert agreed_config(source, harmless) == config.read_text()
    config.write_text(PLAIN.replace("{train_batch", "{log_dir: /root/.ssh, train_batch"))
    with pytest.raises(MidstreamError, match=r"log_dir: /root/\.ssh, .*: it did not when the migration was planned"):
        agreed_config(source, harmless)
    (line,) = plan().policy.consent
    assert agreed_config(source, plan()) == config.read_text()
    assert plan("--trainer.log_dir", "logs").policy.consent == ()
    config.write_text(PLAIN.replace("{train_batch", "{jax_compilation_cache_dir: 'gs://evil/c', train_batch"))
    other = plan()
    assert other.policy.consent == ()
    assert other.target_flags == ("--trainer.jax_compilation_cache_dir", "null")
    assert any("b reads no compiled programs from gs://evil/c" in warning for warning in other.policy.warnings)
    chosen = plan("--trainer.jax_compilation_cache_dir", "gs://ours/c")
    assert chosen.target_flags[-2:] == ("--trainer.jax_compilation_cache_dir", "gs://ours/c")
    assert not any("compiled programs" in warning for warning in chosen.policy.warnings)
    config.write_text(PLAIN.replace("{train_batch", "{log_dir: /root/.ssh, train_batch"))
    config.write_text(config.read_text().replace("/root/.ssh", "/etc"))
    policy = dataclasses.replace(harmless.policy, consent=(line,))
    with pytest.raises(MidstreamError, match="/etc"):
        agreed_config(source, dataclasses.replace(harmless, policy=policy))
    config.write_text("trainer: !include /etc/passwd\n")
    with pytest.raises(MidstreamError, match=r"run\.yaml, line 1: .*!include"):
        plan()
