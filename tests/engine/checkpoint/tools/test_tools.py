"""Command-line tools for checkpoints: --diff and --clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from midstream.check.fleet_leftovers import CHANGED, FoundLeftover
from midstream.cli import main
from midstream.errors import Exit
from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.tui.actions import Actions
from midstream_core import records
from midstream_core.records import RunPaths
from support.checkpoints.checkpoint_states import STATE, plain_state, save


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(str(tmp_path / "root"), "run")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# ------------------------------------------------------------------------------------------------------------- --diff


def diff(paths: RunPaths, a: str, b: str) -> int:
    return main(["--diff", paths.checkpoint(a), paths.checkpoint(b)])


def test_diff_of_same_state_is_empty(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    digest = save(paths, plain_state(), attempt=1).root_digest
    save(paths, plain_state(), attempt=2, provenance={"another": "machine"})
    assert diff(paths, "step-7-a001", "step-7-a002") == Exit.DONE
    assert capsys.readouterr().out == f"equal states: root digest {digest}\n"


def test_diff_names_arrays_from_manifests_alone(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    save(paths, plain_state(), step=7)
    other = plain_state()
    other["model"]["wide"][0, 0] += 1
    other["model"]["half"] = other["model"]["half"].astype(np.float32)
    other["model"]["new"] = np.zeros((2, 3), np.float32)
    other["key"][1] ^= 1
    del other["mask"]
    save(paths, other, step=8)
    for path in Path(paths.checkpoint("step-8-a001"), "arrays/model/wide/c").rglob("*"):
        if path.is_file():
            path.unlink()  # the manifest alone is enough
    assert diff(paths, "step-7-a001", "step-8-a001") == Exit.FAILED
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == [f"a: {paths.checkpoint('step-7-a001')}", f"b: {paths.checkpoint('step-8-a001')}"]
    assert "- mask: only in a (bool [3])" in out
    assert "+ model/new: only in b (float32 [2, 3])" in out
    assert "! model/half: dtype bfloat16 in a, float32 in b" in out
    assert "~ model/wide: 1 of 2 chunks differ" in out
    assert "~ key: differs (2 elements)" in out
    assert not [line for line in out if "model/bias" in line]  # packed with others that differ, and is the same


def test_diff_reports_training_state_difference(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    save(paths, plain_state(), step=7)
    save(paths, plain_state(), step=8, state=dict(STATE, step=8))
    assert diff(paths, "step-7-a001", "step-8-a001") == Exit.FAILED
    assert "all arrays are equal; the training state in train.json differs" in capsys.readouterr().out


def test_diff_of_no_checkpoint_is_one_line(paths: RunPaths, capsys: pytest.CaptureFixture[str]) -> None:
    save(paths, plain_state())
    os.makedirs(paths.checkpoint("step-9-a001"))
    assert diff(paths, "step-7-a001", "step-9-a001") == Exit.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-9-a001: there is no manifest.json" in line


# ------------------------------------------------------------------------------------------------------------ --clean


@pytest.fixture
def fleet(tmp_path: Path, paths: RunPaths) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {paths.root}}}\n")
    return str(file)


def write_status(paths: RunPaths, attempt: int, state: str, process: records.ProcessIdentity, heartbeat: float) -> None:
    os.makedirs(paths.attempt(attempt).dir, exist_ok=True)
    records.Status(state=state, step=7, process=0, heartbeat=heartbeat, **process.to_json()).write(
        paths.attempt(attempt).status()
    )


def partial_save(paths: RunPaths, name: str) -> str:
    directory = Path(paths.checkpoint(name), "arrays/x/c")
    directory.mkdir(parents=True)
    (directory / "0").write_bytes(b"half a cell")
    return f"checkpoints/{name}"


def age(paths: RunPaths, seconds: float = 3600) -> None:
    """Set the run directory's times back by ``seconds``."""
    then = time.time() - seconds
    for path in [Path(paths.dir), *Path(paths.dir).rglob("*")]:
        os.utime(path, (then, then), follow_symlinks=False)


def exited_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def clean(fleet: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["--fleet", fleet, "--json", "--clean", "run", *flags]) == Exit.DONE
    return {line["path"]: line for line in lines(capsys) if line["event"] == "leftover"}


def test_clean_removes_leftovers_only_on_request(
    paths: RunPaths, fleet: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save(paths, plain_state())
    dead = records.ProcessIdentity(records.boot_id(), exited_pid(), 1)
    write_status(paths, 1, records.TRAINING, dead, time.time() - 3600)
    left = {
        partial_save(paths, "step-9-a001"),
        partial_save(paths, ".trash-step-3-a001"),
        f"run.yaml.tmp-{dead.pid}-123",
        f"attempts/001/status-0.json.tmp-{dead.pid}-9",
        f"checkpoints/step-7-a001/manifest.json.tmp-{dead.pid}-7",
    }
    for path in left:
        if ".tmp-" in path:
            Path(paths.dir, path).write_text("half")
    Path(paths.checkpoint("notes")).mkdir()  # not a checkpoint
    age(paths)
    found = clean(fleet, capsys)
    assert set(found) == left
    assert {entry["kept"] for entry in found.values()} == {""}
    assert all(Path(paths.dir, path).exists() for path in left)
    found = clean(fleet, capsys, "--yes")
    assert {path for path, entry in found.items() if entry["removed"]} == left
    assert not any(Path(paths.dir, path).exists() for path in left)
    assert sorted(os.listdir(paths.checkpoints)) == ["notes", "step-7-a001"]
    assert main(["--verify", paths.checkpoint("step-7-a001")]) == Exit.DONE


def test_clean_removes_what_was_listed_alone(paths: RunPaths, fleet: str) -> None:
    """The terminal UI lists, confirms, and removes: another save may be killed in the meantime."""
    save(paths, plain_state())
    write_status(paths, 1, records.TRAINING, records.ProcessIdentity(records.boot_id(), exited_pid(), 1), 0.0)
    listed, changed = partial_save(paths, "step-9-a001"), partial_save(paths, "step-8-a001")
    file = Path(paths.dir, f"run.yaml.tmp-{exited_pid()}-1")
    file.write_text("half")
    age(paths)
    actions = Actions(load_fleet(fleet), HostPool(load_fleet(fleet)))
    shown = [each for each in actions.leftovers(print) if isinstance(each, FoundLeftover)]
    assert {each.path for each in shown} == {listed, changed, file.name}
    appeared = partial_save(paths, "step-6-a001")
    file.write_text("other")  # of the same name
    next(path for path in Path(paths.dir, changed).rglob("*") if path.is_file()).unlink()
    age(paths, 2000)  # hours later: each can be removed
    os.utime(paths.dir)
    for path in [Path(paths.dir, listed), *Path(paths.dir, listed).rglob("*")]:
        then = next(each.changed for each in shown if each.path == listed)
        os.utime(path, (then, then))
    found = {each.path: each for each in actions.leftovers(print, shown) if isinstance(each, FoundLeftover)}
    assert {path for path, each in found.items() if each.removed} == {listed}
    assert {path for path, each in found.items() if each.kept == CHANGED} == {changed, appeared, file.name}
    again = [each for each in actions.leftovers(print) if isinstance(each, FoundLeftover)]
    assert {each.path for each in again if not each.kept} == {changed, appeared, file.name}
    assert all(each.removed for each in actions.leftovers(print, again) if isinstance(each, FoundLeftover))


def test_clean_keeps_files_in_use_with_reason(paths: RunPaths, fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    me = records.this_process()
    write_status(paths, 1, records.TRAINING, me, time.time())
    write_status(paths, 2, records.TRAINING, records.ProcessIdentity("another-boot", 5, 5), time.time() - 30)
    write_status(paths, 3, records.STOPPED, records.ProcessIdentity("another-boot", 5, 5), time.time() - 30)
    kept = {
        partial_save(paths, "step-9-a001"): "attempt 1 is running",
        partial_save(paths, "step-9-a002"): "attempt 2 had a heartbeat",
        partial_save(paths, ".trash-step-3-a001"): "attempt 1 is running",
        f"run.yaml.tmp-{me.pid}-123": f"process {me.pid} may be writing it",
    }
    Path(paths.dir, f"run.yaml.tmp-{me.pid}-123").write_text("half")
    age(paths)
    fresh = partial_save(paths, "step-9-a003")  # exited, but a copy may be running
    found = clean(fleet, capsys, "--yes")
    assert {
        path: entry["kept"].startswith(kept[path]) for path, entry in found.items() if path != fresh
    } == dict.fromkeys(kept, True)
    assert "a program may be writing it" in found[fresh]["kept"]
    assert all(Path(paths.dir, path).exists() for path in [*kept, fresh])


def test_clean_of_unknown_run_is_usage_error(paths: RunPaths, fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(paths.attempts)
    assert main(["--fleet", fleet, "--clean", "rum"]) == Exit.USAGE
    assert "no run 'rum' (did you mean run?)" in capsys.readouterr().err
