"""A saver that is killed at random moments, many times.

    python tests/engine/checkpoint/damage/test_kill_campaign.py [--runs 300] [--seed 1] [--results FILE]

A run saves a chain of states, each with retention, and is killed (SIGKILL): half of the time at a random call that
writes, syncs, renames or deletes, a partial write included, half of the time after a random delay. Then must hold: the
newest complete checkpoint is one that was reported, or the one after it; every complete one is sound to the last byte;
all permanent ones exist; ``--clean`` names the rest and nothing else; and another attempt continues.

Results are appended, one line per run; an interrupted campaign continues after its last run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))  # as a script

from midstream_core.records import RunPaths
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.loading.verify import verify_checkpoint
from midstream_host.runs import leftovers
from support.checkpoints.checkpoint_states import plain_state, save
from support.paths import REPOSITORY, TESTS

RESULTS = REPOSITORY / "docs/campaigns/checkpoint-kills.jsonl"
SAMPLE = 6
STEPS = (10, 20, 30, 40)
PERMANENT = 20  # every so many steps

# Imports once, then forks a saver for each case that it reads from stdin.
KILLER = """
import json, os, signal, sys, threading
from support.checkpoints.checkpoint_states import plain_state, save
from midstream_engine.config.keep_policy import KeepEvery, KeepPolicy
from midstream_engine.checkpoint.saving.retention import Retention
from midstream_core.records import RunPaths

CALLS = ("write", "fsync", "replace", "rename", "unlink", "rmdir")
states = {step: plain_state(seed=step) for step in STEPS}

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def arm(fatal, counter):
    lock = threading.Lock()
    for name in CALLS:
        original = getattr(os, name)
        def call(*arguments, original=original, halve=name == "write", **more):
            with lock:
                counter[0] += 1
                mine = counter[0]
            if mine == fatal:
                if halve:
                    original(arguments[0], arguments[1][: len(arguments[1]) // 2])
                die()
            return original(*arguments, **more)
        setattr(os, name, call)

def run(case, report):
    write, counter = os.write, [0]
    arm(case["call"], counter)
    if case["delay"] is not None:
        threading.Timer(case["delay"], die).start()
    paths = RunPaths(case["root"], "run")
    retention = Retention(KeepPolicy(900.0, (KeepEvery(PERMANENT),)), 0.0)
    for step in STEPS:
        save(paths, states[step], step=step)
        write(report, (str(step) + " ").encode())
        retention.prune(paths)
    write(report, ("calls=" + str(counter[0])).encode())

for line in sys.stdin:
    case = json.loads(line)
    end, report = os.pipe()
    child = os.fork()
    if not child:
        os.close(end)
        run(case, report)
        os._exit(0)
    os.close(report)
    with open(end) as file:
        words = file.read().split()
    status = os.waitpid(child, 0)[1]
    saved = [int(word) for word in words if word.isdigit()]
    calls = [int(word[6:]) for word in words if word.startswith("calls=")]
    print(json.dumps({"saved": saved, "calls": calls, "killed": os.WIFSIGNALED(status), "exit": status}), flush=True)
""".replace("STEPS", repr(STEPS)).replace("PERMANENT", repr(PERMANENT))


class Killer:
    """The process that forks savers."""

    def __init__(self) -> None:
        environment = dict(os.environ, PYTHONPATH=str(TESTS), JAX_PLATFORMS="cpu")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", KILLER], env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, root: Path, call: int | None, delay: float | None) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"root": str(root), "call": call, "delay": delay}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def check(root: Path, saved: list[int]) -> dict[str, Any]:
    """Check the promises (AssertionError where one is broken); return what was found."""
    paths = RunPaths(str(root), "run")
    found = list_checkpoints(paths)
    assert [entry.damaged for entry in found if entry.damaged] == []
    complete = [entry.step for entry in found if entry.complete]
    newest = newest_complete(paths, None)
    if saved:
        following = STEPS[min(len(saved), len(STEPS) - 1)]
        assert complete, "no checkpoint is left"
        assert complete[-1] in (saved[-1], following), f"newest is {newest}, saved were {saved}"
        assert {step for step in saved if step % PERMANENT == 0} <= set(complete), "a permanent one was deleted"
    for entry in found:
        if entry.complete:
            report = verify_checkpoint(paths.checkpoint(entry.name))
            assert report.flaws == [], entry.name
    left = {each.path: each.changed for each in leftovers.leftovers(str(root), "run", quiet=0.0) if not each.kept}
    leftovers.remove(str(root), "run", left, quiet=0.0)
    kept = sorted(os.listdir(paths.checkpoints)) if os.path.isdir(paths.checkpoints) else []
    assert kept == sorted(entry.name for entry in found if entry.complete), "cleaning took too much or too little"
    again = save(paths, plain_state(seed=50), step=50, attempt=2)
    assert newest_complete(paths, None) == again.name
    assert verify_checkpoint(paths.checkpoint(again.name)).sound
    return {"complete": complete, "leftovers": len(left)}


def campaign(seed: int, runs: range, results: Path | None) -> list[dict[str, Any]]:
    """Run the runs of this seed that ``results`` lacks; seed and number determine a run."""
    done = {}
    if results is not None and results.exists():
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        done = {row["run"]: row for row in rows if row.get("seed") == seed and "run" in row}
    rows, killer = [], Killer()
    try:
        with tempfile.TemporaryDirectory(prefix="kills-") as name:
            calls = killer.run(Path(name, "uninterrupted"), None, None)["calls"][0]
            for number in runs:
                if number in done:
                    rows.append(done[number])
                    continue
                drawn = random.Random(f"{seed}/{number}")
                root = Path(name, "case")
                call = drawn.randint(1, calls) if drawn.random() < 0.5 else None
                delay = None if call else drawn.uniform(0.0, 1.0)
                outcome = killer.run(root, call, delay)
                assert outcome["killed"] or outcome["exit"] == 0
                row = {"seed": seed, "run": number, "call": call, "delay": delay, "killed": outcome["killed"]}
                row |= {"saved": outcome["saved"], **check(root, outcome["saved"])}
                shutil.rmtree(root)
                rows.append(row)
                if results is not None:
                    with results.open("a") as file:
                        file.write(json.dumps(row) + "\n")
    finally:
        killer.close()
    return rows


def test_random_kills_lose_no_saved_checkpoint() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rows = campaign(seed, range(SAMPLE), None)
    assert len(rows) == SAMPLE
    assert any(row["killed"] for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kill_campaign(tmp_path: Path) -> None:
    rows = campaign(1, range(300), tmp_path / "kills.jsonl")
    assert sum(row["killed"] for row in rows) >= 150


def test_committed_kill_campaign_is_complete_without_failure() -> None:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    assert len({(row["seed"], row["run"]) for row in rows}) == len(rows)
    assert sum(row["killed"] for row in rows) >= 200
    for row in rows:
        assert not row["saved"] or row["complete"][-1] >= row["saved"][-1], row


def main() -> None:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    flags.add_argument("--runs", type=int, default=300)
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--results", type=Path, default=RESULTS)
    options = flags.parse_args()
    options.results.parent.mkdir(parents=True, exist_ok=True)
    rows = campaign(options.seed, range(options.runs), options.results)
    print(f"{len(rows)} runs, {sum(row['killed'] for row in rows)} killed, none lost anything")


if __name__ == "__main__":
    main()
