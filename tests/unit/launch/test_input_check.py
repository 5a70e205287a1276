"""Configuration, tokenizer and text of a run are checked before anything is installed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from midstream.bundled_files import config_path
from midstream.errors import Exit, UsageError
from midstream.fleet.fleet import LocalHostConfig, SlurmTarget, Target
from midstream.hosts.local_host import LocalHost
from midstream.launch.config_file import read_config
from midstream.launch.input_check import RunInputs, check_flags, check_inputs, read_inputs
from midstream_engine.check_config import inputs_of
from midstream_engine.config import ConfigError, from_mapping
from midstream_host.machine import run_inputs

STANDARD = "stdlib:json/*.py"


def inputs(**data: Any) -> RunInputs:
    """Return what a run of these ``data`` reads."""
    found = inputs_of(from_mapping({"data": {"tokenizer": "bytes", "train_urls": [STANDARD], **data}}).config)
    return RunInputs(
        found["tokenizer"], found["eos_token"], found["cache_dir"] or "", tuple(found["texts"]), found["packages"]
    )


def check(tmp_path: Path, found: RunInputs, **config: Any) -> list[str]:
    """Check on this machine; return the notes."""
    settings = LocalHostConfig(root=str(tmp_path / "root"), **config)
    notes: list[str] = []
    target = Target("here", ("here",))
    check_inputs([LocalHost("here", settings)], [settings], target, "run", found, notes.append)
    assert not (tmp_path / "root").exists(), "nothing is written"
    return notes


def refusal(tmp_path: Path, found: RunInputs, **config: Any) -> str:
    with pytest.raises(UsageError) as caught:
        check(tmp_path, found, **config)
    assert caught.value.code == Exit.USAGE
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tokenizer_file(path: Path) -> Path:
    path.write_text(json.dumps({"added_tokens": [{"content": "<end>"}], "model": {"vocab": {"a": 0}}}))
    return path


@pytest.mark.parametrize("name", ["gpt2_nano", "gpt2_small", "gpt2_tiny", "llama_1b", "llama_tiny", "neox_tiny"])
def test_shipped_config_is_valid_and_found_from_any_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "model:" in read_config(f"configs/{name}.yaml")
    assert from_mapping_of(f"configs/{name}.yaml")["texts"]


def from_mapping_of(name: str) -> dict[str, Any]:
    from midstream_engine.config import load_config

    return inputs_of(load_config(["--config_path", str(config_path(name))]).config)


@pytest.mark.long
def test_flags_of_a_run_are_checked_with_its_config() -> None:
    config = {"data": {"tokenizer": "bytes"}, "model": {"type": "gpt2"}, "trainer": {"seed": 1}, "unknown": 1}
    check_flags(config, ())
    check_flags({**config, "unknown": {}}, ("--trainer.num_train_steps", "5"))  # not of a flag: the engine reports it
    del config["unknown"]
    check_flags(config, ("--trainer.num_train_steps", "5", "--model.hidden_dim=96"))
    for flags, message in (
        (("--trainer.num_trainsteps", "5"), "unknown key trainer.num_trainsteps; nearest: trainer.num_train_steps"),
        (("--trainer.num_train_steps", "many"), "--trainer.num_train_steps: Couldn't parse 'many' into an int"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            check_flags(config, flags)


def test_file_of_the_user_precedes_the_shipped_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "gpt2_nano.yaml").write_text("mine: 1\n")
    assert read_config("configs/gpt2_nano.yaml") == "mine: 1\n"
    for name in ("gpt2_nano.yaml", "gpt2_nano"):
        with pytest.raises(UsageError, match=rf"^{name}: no such file \(did you mean configs/gpt2_nano.yaml\?\)"):
            config_path(name)
    with pytest.raises(UsageError, match=r"configs/none.yaml: no such file, and midstream ships configs/gpt2_nano"):
        read_config("configs/none.yaml")
    with pytest.raises(UsageError, match="No such file"):
        read_config("configs/../pyproject.toml")


def test_unknown_key_is_refused_with_file_and_line(tmp_path: Path) -> None:
    config = tmp_path / "train.yaml"
    config.write_text("model:\n  hiden_dim: 64\n")
    with pytest.raises(UsageError, match=r"train.yaml:2: .*hiden_dim; nearest: .*hidden_dim") as caught:
        read_inputs(config)
    assert caught.value.code == Exit.USAGE
    with pytest.raises(UsageError, match=r"^unknown key data\.tokeniser; nearest: data\.tokenizer"):
        read_inputs("configs/gpt2_nano.yaml", ("--data.tokeniser", "bytes"))


def test_config_without_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.train_urls is empty"):
        inputs(train_urls=[])


def test_text_of_a_dataset_without_weight_is_not_read() -> None:
    found = inputs(
        train_urls=[],
        configs={"a": {"train_urls": ["/a"]}, "b": {"train_urls": ["/b"], "validation_urls": ["/c"]}},
        train_weights={"a": 1.0},
    )
    assert [text["url"] for text in found.texts] == ["/a", "/c"]


def test_missing_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    missing = refusal(tmp_path, inputs(tokenizer=str(path)))
    assert missing.startswith(f"data.tokenizer on here: {path}: No such file or directory (copy a Hugging Face")
    path.write_text("{}")
    assert "is no tokenizer.json" in refusal(tmp_path, inputs(tokenizer=str(path)))
    tokenizer_file(path)
    assert "'<|endoftext|>' is not in the vocabulary" in refusal(tmp_path, inputs(tokenizer=str(path)))
    assert check(tmp_path, inputs(tokenizer=str(tmp_path), eos_token="<end>")) == []


def test_tokenizer_in_the_home_of_the_host(tmp_path: Path) -> None:
    found = inputs(tokenizer="~/tokenizer.json", eos_token="<end>")
    assert f"{tmp_path}/tokenizer.json" in refusal(tmp_path, found, env={"HOME": str(tmp_path)})
    tokenizer_file(tmp_path / "tokenizer.json")
    assert check(tmp_path, found, env={"HOME": str(tmp_path)}) == []


def test_missing_text_is_refused(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/text.{{1..3}}.jsonl"
    assert f"data.train_urls on here: {tmp_path}/text.1.jsonl names no file" in refusal(
        tmp_path, inputs(train_urls=[pattern])
    )
    (tmp_path / "text.2.jsonl").touch()
    [note] = check(tmp_path, inputs(train_urls=[pattern]))
    assert note == (f"data.train_urls on here: 2 of 3 files of {pattern} are missing, such as {tmp_path}/text.1.jsonl")
    assert "relative.txt names no file" in refusal(tmp_path, inputs(train_urls=["relative.txt"]))
    assert "unknown scheme" in refusal(tmp_path, inputs(validation_urls=["s4://bucket/x"]))
    [note] = check(tmp_path, inputs(validation_urls=["s3://bucket/x"]))
    assert "s3://bucket/x is checked when the engine starts" in note
    assert "has no imported data" in refusal(tmp_path, inputs(train_urls=[f"imported:{tmp_path}/{'0' * 64}"]))


def test_unreachable_server_is_refused(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/text.jsonl"
    assert f"data.train_urls on here: {url}: " in refusal(tmp_path, inputs(train_urls=[url]))


def test_text_in_a_cache_need_not_be_reachable(tmp_path: Path) -> None:
    [note] = check(tmp_path, inputs(train_urls=["/no/such/file"], cache_dir="gs://bucket/tokens"))
    assert "names no file" in note


def test_files_of_a_cluster_are_reported_alone(tmp_path: Path) -> None:
    settings = LocalHostConfig(root=str(tmp_path / "root"))
    target = Target("cluster", ("login",), slurm=SlurmTarget("login", []))
    notes: list[str] = []
    found = inputs(train_urls=["/no/such/file"])
    check_inputs([LocalHost("login", settings)], [settings], target, "run", found, notes.append)
    assert len(notes) == 1


def test_missing_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = RunInputs("bytes", "", "", (), {"no_such_package": "data.id"})
    for config in ({}, {"python": sys.executable}, {"devices": 1, "variant": "cpu"}):
        line = refusal(tmp_path, needs, **config)
        assert line.startswith("data.id on here: the package no_such_package is missing (python: of here in the fleet")
    [note] = check(tmp_path, RunInputs("bytes", "", "", (), {"tensorboardX": "trainer.tracker"}), python=bare(tmp_path))
    assert note == "trainer.tracker on here: the package tensorboardX is missing; metrics go to metrics.jsonl only"


def bare(tmp_path: Path) -> str:
    """Return an interpreter without packages."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_needs_of_gpt2_small_are_in_its_environment() -> None:
    from midstream.bundled_files import shipped

    needed = from_mapping_of("configs/gpt2_small.yaml")["packages"]
    assert needed == {"tokenizers": "data.tokenizer: ~/data/gpt2/tokenizer.json"}
    for lock in ("cpu", "cuda12", "cuda13", "tpu", "tpu-v3"):
        assert "\ntokenizers==" in shipped(f"locks/engine-{lock}.txt").read_text()


def test_unreadable_text_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every file")
    file = tmp_path / "text.txt"
    file.touch(mode=0)
    [problem] = run_inputs.problems(
        "bytes", "", [{"field": "f", "url": str(file), "files": [str(file)], "count": 1}], "/", {}
    )
    assert "cannot be read" in problem.message
