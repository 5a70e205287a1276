"""Run files of other trainers: defaults, templates, and one clear line for what is wrong."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from pathlib import Path

import pytest

from midstream.cli import main
from midstream.errors import Exit, RemoteError, UsageError
from midstream.migrate.journal.json_values import fields_of
from midstream.migrate.journal.plan import TrainerPlan
from midstream.trainers.registry import TRAINERS
from midstream.trainers.run_file_parser import PATHS, as_text, from_value, names_run_file, parse_run_file
from midstream_core import records
from midstream_host.driver.run_file import DISTRIBUTED, RunFile, expand

HUGGINGFACE = """
trainer: huggingface
command: torchrun --nproc_per_node {devices} train.py --output_dir {out} --gradient_accumulation_steps {accumulation}
batch: {sequences: 64, per_device: 8}
"""


def parsed(text: str) -> RunFile:
    return parse_run_file(text, Path("run.yaml")).run


def error_of(text: str) -> UsageError:
    with pytest.raises(UsageError) as raised:
        parse_run_file(text, Path("run.yaml"))
    return raised.value


def test_defaults_of_a_trainer_complete_its_run_file() -> None:
    run = parsed(HUGGINGFACE)
    assert run.resume == [*run.command, "--resume_from_checkpoint", "{checkpoint}"]
    assert (run.checkpoints.rule, run.checkpoints.reshards) == ("huggingface", True)
    assert (run.metrics.source, run.metrics.first_step) == ("tensorboard", 1)
    assert run.batch.kept_by == "command"
    assert not run.stop.saves


def test_resolved_run_file_is_read_back_as_it_was() -> None:
    run = parsed(HUGGINGFACE)
    assert from_value(json.loads(as_text(run)), "run.yaml") == run


def test_every_trainer_has_defaults_for_a_short_run_file() -> None:
    more = (
        "resume: python t.py {checkpoint}\nmetrics: {source: jsonl, path: m.jsonl}\n"
        "checkpoints: {rule: glob, pattern: '*.pt'}"
    )
    for name in TRAINERS:
        assert parsed(f"trainer: {name}\ncommand: python t.py\n{more}").trainer == name


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("trainer: hugingface\ncommand: x", "trainer: 'hugingface' is no trainer", "huggingface"),
        ("trainer: huggingface", "command: missing", "torchrun"),
        ("trainer: huggingface\ncommand: x\nstopp: {}", "stopp: no key of a run file", "stop"),
        ("trainer: huggingface\ncommand: x\nstop: {grase: 3}", "stop.grase: no key of it", "grace"),
        ("trainer: huggingface\ncommand: x\nstop: {signal: SIGTREM}", "'SIGTREM' is no signal", "SIGTERM"),
        ("trainer: huggingface\ncommand: x\nstop: {grace: soon}", "stop: grace: expected a number", ""),
        ("trainer: huggingface\ncommand: x {devics}", "{devics} is no placeholder", "devices"),
        ("trainer: huggingface\ncommand: x {checkpoint}", "{checkpoint} belongs to resume", ""),
        ("trainer: huggingface\ncommand: 'a \"b'", "command: no closing quotation", ""),
        ("trainer: script\ncommand: x", "resume: missing", "{checkpoint}"),
        ("trainer: script\ncommand: x\nresume: y", "checkpoints: missing", "glob"),
        ("trainer: huggingface\ncommand: x {accumulation}", "batch.sequences: missing", "sequences"),
        ("trainer: huggingface\ncommand: x\nfiles: [../data]", "'../data' is not below", ""),
        ("trainer: huggingface\ncommand: x\nmetrics: {source: regex, pattern: 'a'}", "needs a group step", ""),
        ("trainer: huggingface\ncommand: x\n\tbad", "run.yaml, line 3", ""),
        ("- a", "not a mapping", "trainer"),
    ],
)
def test_mistake_in_a_run_file_is_named(text: str, what: str, hint: str) -> None:
    error = error_of(text)
    assert what in error.message
    assert error.message.startswith("run.yaml")
    assert hint in error.hint


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node=8 t.py", "torchrun --nproc-per-node 8 t.py", "torchrun --master_port 29500 t.py",
        "env MASTER_ADDR=10.0.0.1 python t.py", "torchrun --node_rank 0 t.py", "WORLD_SIZE=2 python t.py",
    ],
)  # fmt: skip
def test_command_may_not_fix_the_rendezvous(command: str) -> None:
    error = error_of(f"trainer: huggingface\ncommand: {command}")
    assert any(f"fixes {name}" in error.message for name in DISTRIBUTED)


@pytest.mark.parametrize(
    ("command", "what", "hint"),
    [
        ("accelerate launch t.py", "accelerate launch starts as many processes", "--num_processes {world}"),
        ("python -m accelerate.commands.launch t.py", "starts as many processes", "--num_processes {world}"),
        ("accelerate launch --num_processes 4 t.py", "--num_processes 4 fixes the number", "--num_processes {world}"),
        ("accelerate launch --num-processes=4 t.py", "--num_processes 4 fixes the number", "--num_processes {world}"),
        ("deepspeed t.py", "deepspeed starts as many processes", "--num_gpus {devices}"),
        ("sh -c 'cd x && deepspeed --num_gpus=2 t.py'", "--num_gpus 2 fixes the number", "--num_gpus {devices}"),
        ("env CUDA_VISIBLE_DEVICES=0 python t.py", "it sets CUDA_VISIBLE_DEVICES", "devices: [0, 1] of the host"),
        ("sh -c 'CUDA_VISIBLE_DEVICES=1 python t.py'", "it sets CUDA_VISIBLE_DEVICES", "devices: N here"),
    ],
)
def test_command_may_not_choose_devices(command: str, what: str, hint: str) -> None:
    error = error_of(f"trainer: huggingface\ncommand: {command}")
    assert what in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    "command",
    [
        "accelerate launch --num_processes {world} t.py", "accelerate launch --num_processes={world} t.py",
        "deepspeed --num_gpus {devices} t.py", "python t.py --deepspeed zero.json", "python accelerate/t.py launch",
    ],
)  # fmt: skip
def test_launcher_gets_the_number_of_devices(command: str) -> None:
    assert parsed(f"trainer: huggingface\ncommand: {command}").command


def test_environment_may_not_choose_devices() -> None:
    error = error_of("trainer: huggingface\ncommand: x\nenvironment: {variables: {CUDA_VISIBLE_DEVICES: '0'}}")
    assert "environment.variables.CUDA_VISIBLE_DEVICES: each host has its own" in error.message


@pytest.mark.parametrize("more", ["processes: devices", "processes: node\nlauncher: false"])
def test_wrong_processes_are_named(more: str) -> None:
    assert "processes: " in error_of(f"trainer: huggingface\ncommand: x\n{more}").message


def test_environment_may_not_fix_the_rendezvous() -> None:
    text = "trainer: huggingface\ncommand: x\nenvironment: {variables: {RANK: '0'}}"
    assert "environment.variables.RANK" in error_of(text).message


def test_requirements_are_read_beside_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\n")
    text = "trainer: huggingface\ncommand: x\nenvironment: {requirements: requirements.txt}"
    run = parse_run_file(text, tmp_path / "run.yaml").run
    assert run.environment.requirements == "torch==2.13.0\n"
    with pytest.raises(UsageError, match=r"environment\.lock"):
        parse_run_file(text.replace("requirements: r", "lock: missing"), tmp_path / "run.yaml")


def test_run_file_of_a_host_names_files_of_that_host(tmp_path: Path) -> None:
    (tmp_path / "packages.txt").write_text("of this machine\n")
    path, requested = Path(f"lab:{tmp_path}/run.yaml"), list[str]()

    def read(name: str) -> str:
        requested.append(name)
        if name == "missing.txt":
            raise RemoteError("lab: missing.txt: no such file")
        return "torch==2.13.0\n"

    text = f"{HUGGINGFACE}environment: {{lock: NAME}}\n"
    run = parse_run_file(text.replace("NAME", "locks/packages.txt"), path, read).run
    assert run.environment.requirements == "torch==2.13.0\n"
    assert requested == ["locks/packages.txt"]
    for name, what in (
        (str(tmp_path / "packages.txt"), "is not below the directory"), ("../x", "is not below the directory"),
        ("~/x", "is not below the directory"), ("a/../../x", "is not below the directory"),
        ('"a\\nb"', "is not below the directory"), ("uv.lock", "is read on this machine alone"),
        ("missing.txt", "no such"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"environment\.lock: ") as raised:
            parse_run_file(text.replace("NAME", name), path, read)
        assert what in str(raised.value), name
        assert str(raised.value).isprintable()
    assert requested == ["locks/packages.txt", "missing.txt"]


def test_long_requirements_fit_into_run_file_and_plan(tmp_path: Path) -> None:
    """A lock with hashes for torch has more characters than a string of a record may have otherwise."""
    lines = "".join(f"package-{number}==1.0 --hash=sha256:{'ab' * 32}\n" for number in range(2000))
    (tmp_path / "packages.txt").write_text(lines)
    run = parse_run_file(f"{HUGGINGFACE}environment: {{lock: packages.txt}}\n", tmp_path / "run.yaml").run
    path = tmp_path / "resolved.yaml"
    path.write_text(as_text(run))
    assert RunFile.read(str(path)) == from_value(json.loads(as_text(run)), "run.yaml") == run
    plan = json.loads(json.dumps(dataclasses.asdict(TrainerPlan("huggingface", as_text(run), (), ()))))
    assert TrainerPlan(**fields_of(TrainerPlan, plan)).run_file == run
    (tmp_path / "packages.txt").write_text(lines * 4)
    with pytest.raises(UsageError, match=r"environment\.lock: .*packages\.txt has \d+ characters, allowed are 524288"):
        parse_run_file(f"{HUGGINGFACE}environment: {{lock: packages.txt}}\n", tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("name", "text", "what", "hint"),
    [
        ("poetry.lock", '[[package]]\nname = "torch"\n', "is a lock in TOML", "poetry export"),
        (
            "environment.yml",
            "name: x\nchannels: [main]\n",
            "is an environment of conda without exact",
            "conda-lock lock",
        ),
        ("pixi.lock", "version: 6\nenvironments:\n  default:\n", "is a lock of pixi", "conda-explicit-spec"),
    ],
)
def test_lock_that_pip_cannot_install_is_refused(tmp_path: Path, name: str, text: str, what: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        parse_run_file(f"{HUGGINGFACE}environment: {{lock: {name}}}\n", tmp_path / "run.yaml")
    assert f"environment.lock: {tmp_path / name} {what}" in str(raised.value)
    assert ", which hosts do not install" in str(raised.value)
    assert hint in str(raised.value.hint)


def test_uv_lock_needs_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uv.lock").write_text('version = 1\n\n[[package]]\nname = "torch"\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"environment\.lock: .*uv\.lock is read by uv") as raised:
        parse_run_file(f"{HUGGINGFACE}environment: {{lock: uv.lock}}\n", tmp_path / "run.yaml")
    assert "uv export --frozen --no-emit-project -o requirements.txt" in raised.value.hint


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo 'error: not\033[2J supported' >&2; exit 2", "not"),
        ("echo torch==2.13.0", "no package with a hash"),
    ],
)
def test_uv_lock_that_uv_cannot_export_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, what: str
) -> None:
    (tmp_path / "uv.lock").write_text("version = 99\n")
    program = tmp_path / "bin" / "uv"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(UsageError, match=what) as raised:
        parse_run_file(f"{HUGGINGFACE}environment: {{lock: uv.lock}}\n", tmp_path / "run.yaml")
    assert "\033" not in raised.value.message


def test_config_of_the_engine_is_no_run_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("trainer: {id: x}\nmodel: {type: gpt2}\n")
    assert not names_run_file(file)
    file.write_text(HUGGINGFACE)
    assert names_run_file(file)


def test_placeholder_without_value_is_an_error() -> None:
    assert expand(["a={devices}", "{json}"], {"devices": 2}) == ["a=2", "{json}"]
    with pytest.raises(records.RecordError, match="accumulation"):
        expand(["{accumulation}"], {"accumulation": ""})


def test_missing_directory_is_named_with_its_host_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing"
    assert main(["--init-run", str(missing)]) == Exit.FAILED
    line = capsys.readouterr().err
    assert line.startswith(f"midstream: this machine: {missing}: there is no such directory")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("checkpoints: {rule: glob, pattern: '{out}/ckpt-*.pt'}", "checkpoints.pattern"),
        ("checkpoints: {rule: glob, pattern: /data/ckpt-*.pt}", "checkpoints.pattern"),
        ("checkpoints: {rule: glob, pattern: ./ckpt-*.pt}", "checkpoints.pattern"),
        ("metrics: {source: jsonl, path: 'logs/{out}/m.jsonl'}", "metrics.path"),
        ("metrics: {source: jsonl, path: ../m.jsonl}", "metrics.path"),
    ],
)
def test_pattern_that_can_never_match_is_refused(more: str, key: str) -> None:
    """No checkpoint, and no metrics, would ever have been found, without a word."""
    text = {
        "trainer": "script", "command": "python t.py", "resume": "python t.py {checkpoint}",
        "checkpoints": "{rule: glob, pattern: '*.pt'}", "metrics": "{source: jsonl, path: m.jsonl}",
    }  # fmt: skip
    text[key.split(".")[0]] = more.partition(": ")[2]
    assert f"run.yaml: {key}: " in error_of("\n".join(f"{name}: {value}" for name, value in text.items())).message


@pytest.mark.parametrize("name", ["x;touch y", "a b", "$(touch y)", "a'b", "a\nb", "~"])
def test_checkpoint_name_is_no_part_of_a_script(name: str) -> None:
    script, word = ["sh", "-c", "exec train --resume {checkpoint}"], ["train", "--resume", "{checkpoint}"]
    with pytest.raises(
        records.RecordError, match=r"\{checkpoint\} is in a script, and a shell would not read .* as one word"
    ):
        expand(script, {"checkpoint": name})
    assert expand(word, {"checkpoint": name}) == ["train", "--resume", name], "no shell reads it"
    argument = ["sh", "-c", 'exec train --resume "$1"', "sh", "{checkpoint}"]
    assert expand(argument, {"checkpoint": name})[4] == name, "what the hint says"
    plain = "/home/josé/r/epoch=0-step=10,loss:1.5.ckpt"
    assert expand(script, {"checkpoint": plain})[2] == f"exec train --resume {plain}"


EXAMPLES = {  # files that the trackers write, as they name them
    "tensorboard": "{out}/runs/Nov28_host/events.out.tfevents.1764288000.host.1.0",
    "csv": "{out}/lightning_logs/version_0/metrics.csv",
    "jsonl": "{out}/metrics.jsonl",
    "trackio": "{out}/trackio/project.db",
    "wandb": "wandb/offline-run-20261128_101010-ab12cd/run-ab12cd.wandb",
}


@pytest.mark.parametrize("source", PATHS)
def test_hint_for_a_missing_path_is_one_of_its_source(source: str) -> None:
    text = (
        f"trainer: script\ncommand: x\nresume: y\ncheckpoints: {{rule: glob, pattern: a}}\nmetrics: {{source: {source}"
    )
    error = error_of(text + "}\n")
    assert error.message.endswith(f"metrics.path: missing for {source}")
    path = error.hint.removeprefix("path: ").strip('"')
    assert parsed(f"{text}, path: '{path}'}}\n").metrics.path == path
    assert fnmatch.fnmatch(EXAMPLES[source], path.replace("**/", "*"))
