"""The command line's tools for checkpoints: what differs, and what was left over."""

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

from midstream.cli import main
from midstream.errors import Exit
from midstream_engine import records
from midstream_engine.records import RunPaths
from support.checkpoint_states import STATE, plain_state, save


@pytest.fixture
def paths(tmp_path) -> RunPaths:
    return RunPaths(str(tmp_path / "root"), "run")


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# ------------------------------------------------------------------------------------------------------------- --diff


def diff(paths: RunPaths, a: str, b: str) -> int:
    return main(["--diff", paths.checkpoint(a), paths.checkpoint(b)])


def test_the_same_state_in_two_checkpoints_is_the_same(paths, capsys):
    digest = save(paths, plain_state(), attempt=1).root_digest
    save(paths, plain_state(), attempt=2, provenance={"another": "machine"})
    assert diff(paths, "step-7-a001", "step-7-a002") == Exit.DONE
    assert capsys.readouterr().out == f"the same state: root digest {digest}\n"


def test_what_differs_is_named_array_by_array_without_reading_one(paths, capsys):
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
    assert "~ model/wide: 1 of 2 cells differ" in out
    assert "~ key: differs (2 elements)" in out
    assert not [line for line in out if "model/bias" in line]  # packed with others that differ, and is the same


def test_a_difference_of_the_training_state_alone_is_told(paths, capsys):
    save(paths, plain_state(), step=7)
    save(paths, plain_state(), step=8, state=dict(STATE, step=8))
    assert diff(paths, "step-7-a001", "step-8-a001") == Exit.FAILED
    assert "every array is the same; the training state in train.json is not" in capsys.readouterr().out


def test_a_directory_that_is_no_checkpoint_is_one_clear_line(paths, capsys):
    save(paths, plain_state())
    os.makedirs(paths.checkpoint("step-9-a001"))
    assert diff(paths, "step-7-a001", "step-9-a001") == Exit.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert "step-9-a001: there is no manifest.json" in line


# ------------------------------------------------------------------------------------------------------------ --clean


@pytest.fixture
def fleet(tmp_path, paths) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"hosts:\n  here: {{type: local, root: {paths.root}}}\n")
    return str(file)


def write_status(paths: RunPaths, attempt: int, state: str, process: records.ProcessIdentity, heartbeat: float) -> None:
    os.makedirs(paths.attempt(attempt).dir, exist_ok=True)
    records.Status(state=state, step=7, process=0, heartbeat=heartbeat, **process.to_json()).write(
        paths.attempt(attempt).status()
    )


def torn(paths: RunPaths, name: str) -> str:
    directory = Path(paths.checkpoint(name), "arrays/x/c")
    directory.mkdir(parents=True)
    (directory / "0").write_bytes(b"half a cell")
    return f"checkpoints/{name}"


def age(paths: RunPaths, seconds: float = 3600) -> None:
    """As if nothing in the run's directory had changed for so long."""
    then = time.time() - seconds
    for path in [Path(paths.dir), *Path(paths.dir).rglob("*")]:
        os.utime(path, (then, then), follow_symlinks=False)


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


def clean(fleet: str, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["--fleet", fleet, "--json", "--clean", "run", *flags]) == Exit.DONE
    return {line["path"]: line for line in lines(capsys) if line["event"] == "leftover"}


def test_leftovers_are_named_and_removed_only_when_asked_to(paths, fleet, capsys):
    save(paths, plain_state())
    gone = records.ProcessIdentity(records.boot_id(), ended_pid(), 1)
    write_status(paths, 1, records.TRAINING, gone, time.time() - 3600)
    left = {
        torn(paths, "step-9-a001"),
        torn(paths, ".trash-step-3-a001"),
        f"run.yaml.tmp-{gone.pid}-123",
        f"attempts/001/status-0.json.tmp-{gone.pid}-9",
        f"checkpoints/step-7-a001/manifest.json.tmp-{gone.pid}-7",
    }
    for path in left:
        if ".tmp-" in path:
            Path(paths.dir, path).write_text("half")
    Path(paths.checkpoint("notes")).mkdir()  # nobody's business
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


def test_what_somebody_may_be_writing_is_kept_and_the_reason_told(paths, fleet, capsys):
    me = records.this_process()
    write_status(paths, 1, records.TRAINING, me, time.time())
    write_status(paths, 2, records.TRAINING, records.ProcessIdentity("another-boot", 5, 5), time.time() - 30)
    write_status(paths, 3, records.STOPPED, records.ProcessIdentity("another-boot", 5, 5), time.time() - 30)
    kept = {
        torn(paths, "step-9-a001"): "attempt 1 is running",
        torn(paths, "step-9-a002"): "attempt 2 gave a sign of life",
        torn(paths, ".trash-step-3-a001"): "attempt 1 is running",
        f"run.yaml.tmp-{me.pid}-123": f"process {me.pid} may be writing it",
    }
    Path(paths.dir, f"run.yaml.tmp-{me.pid}-123").write_text("half")
    age(paths)
    fresh = torn(paths, "step-9-a003")  # ended, but a copy may be under way
    found = clean(fleet, capsys, "--yes")
    assert {
        path: entry["kept"].startswith(kept[path]) for path, entry in found.items() if path != fresh
    } == dict.fromkeys(kept, True)
    assert "somebody may be at it" in found[fresh]["kept"]
    assert all(Path(paths.dir, path).exists() for path in [*kept, fresh])


def test_a_run_that_nobody_has_is_a_usage_error(paths, fleet, capsys):
    os.makedirs(paths.attempts)
    assert main(["--fleet", fleet, "--clean", "rum"]) == Exit.USAGE
    assert "no run 'rum' (known: run)" in capsys.readouterr().err
