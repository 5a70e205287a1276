"""A script of numpy that counts from 0 and saves `step-449.npz` after its step 449: migrated without a hole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulators.sshd import Lab
from support.command_line import Run, midstream
from support.trainers.script_runs import claims_of

pytestmark = pytest.mark.drawn
TRAIN = """
import argparse, json, os, re, time
import numpy as np

flags = argparse.ArgumentParser()
flags.add_argument("--out", required=True)
flags.add_argument("--resume", default="")
flags.add_argument("--skip", type=int, default=0)
options = flags.parse_args()
weights, begin = np.zeros(8), 0
if options.resume:
    weights = np.load(options.resume)["weights"]
    begin = int(re.search(r"step-(\\d+)", options.resume)[1]) + 1 + options.skip
os.makedirs(options.out, exist_ok=True)
with open(os.path.join(options.out, "log.jsonl"), "a") as log:
    for step in range(begin, 20000):
        inputs = np.random.default_rng(step).normal(size=(4, 8))
        error = inputs @ weights - np.sin(inputs.sum(1))
        weights = weights - 0.01 * inputs.T @ error / 4
        print(json.dumps({"step": step, "loss": float((error**2).mean()), "lr": 0.01}), file=log, flush=True)
        if step % 25 == 24:
            path = os.path.join(options.out, f"step-{step}.npz")
            np.savez(path + ".tmp.npz", weights=weights)
            os.replace(path + ".tmp.npz", path)
        time.sleep(0.02)
"""
RUN_FILE = """\
trainer: script
command: "{python} train.py --out {out}"
resume: "{python} train.py --out {out} --resume {checkpoint} FLAGS"
files: ["*.py"]
checkpoints: {rule: glob, pattern: "step-*.npz"}
metrics: {source: jsonl, path: "{out}/log.jsonl"}
stop: {grace: 5}
"""


def write(directory: Path, flags: str = "") -> Path:
    directory.mkdir()
    (directory / "train.py").write_text(TRAIN)
    (directory / "run.yaml").write_text(RUN_FILE.replace("FLAGS", flags))
    return directory / "run.yaml"


def test_number_of_the_last_step_is_learned(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    launched = midstream("--fleet", fleet, "--launch", write(tmp_path / "code"), "--on", "here", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(here.root, "r"), runs(there.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    assert all(int(name.split("-")[1]) % 25 == 24 for name in source.checkpoints())
    words = ("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes", "--healthy-steps", "3", "--json")
    for mode, finds_out in (("warm", "the rehearsal"), ("cold", "--mode warm")):
        shown = midstream(*words, "--mode", mode, "--dry-run")
        assert f"is not known: {finds_out} finds out before anything is stopped" in shown.stdout
    moved = midstream(*words)
    assert moved.code == 0, moved.stderr
    notes = [event["message"] for event in moved.of("note")]
    assert any("checkpoints of r have the number of their last step" in note for note in notes), notes
    sealed = moved.result["certificate"]["step"]
    assert sealed % 25 == 0
    step = claims_of(moved)["step"]
    assert (step["verdict"], step["evidence"]["first"]) == ("verified", sealed)
    # The target's own checkpoints say it too, so that its next start continues without a hole.
    target.wait(lambda run: any(name.endswith("-a002") for name in run.checkpoints()), "a checkpoint of the target")
    target.kill()
    target.wait(lambda run: not run.running, "its end")
    again = midstream("--fleet", fleet, "--restart", "r")
    assert again.code == 0, again.stderr
    target.wait(lambda run: run.attempt == 3 and bool(run.rows(3)), "rows of the third attempt")
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    rows = target.spliced()
    assert sorted(rows) == list(range(len(rows)))
    assert {row["attempt"] for row in rows.values()} == {1, 2, 3}


def test_step_that_does_not_follow_is_found_before_the_stop(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    here, there = lab.host("here"), lab.host("there")
    fleet = lab.fleet_file(here=here.config, there=there.config)
    file = write(tmp_path / "code", "--skip 7")
    assert midstream("--fleet", fleet, "--launch", file, "--on", "here", "--run-id", "r").code == 0
    source = runs(here.root, "r")
    source.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "there", "--yes")
    assert moved.code == 1, moved.stderr
    assert "prepare: failed: the rehearsal on there: step: the first step that the target logged is" in moved.stderr
    assert "nothing was stopped; checkpoints and rows have to count the same: metrics: {first_step: N}" in moved.stderr
    assert source.running
    assert (source.attempt, source.fence.epoch) == (1, 1)
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
