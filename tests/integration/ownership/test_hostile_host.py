"""A host that claims another host's run, over real connections: it owns, stops and executes nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from midstream.migrate.journal.migration_directory import migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import Run, midstream, start_midstream
from support.migrations.real_migrations import assert_one_lineage, kill_operator, launched, newest_migration
from support.trainers.script_trainer import write_script

CLAIMED = 9  # epoch of the claim


class Hosts:
    """Run "live" trains on "good"; "liar" has a run of another trainer with that name, and claims it; "third"."""

    def __init__(self, lab: Lab, runs: Callable[..., Run], room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        good, liar, third = lab.local("good", devices=1), lab.host("liar"), lab.local("third", devices=1)
        self.third, self.marks = Path(third.root), room / "marks"
        self.good, self.liar = runs(good.root, "live"), runs(liar.root, "live")
        self.marks.mkdir()
        alone = room / "alone"
        alone.mkdir()
        fleet = lab.fleet_file(liar=liar.config).rename(alone / "fleet.yaml")
        self.fleet = lab.fleet_file(good=good, liar=liar.config, third=third)
        launched(self.fleet, self.good, "good", "--trainer.checkpointer.keep", "[{every: 5}]")
        with monkeypatch.context() as patch:
            patch.setenv("MIDSTREAM_STATE", str(room / "their state"))  # another operator; no fleet file names its key
            file = write_script(liar.root / "files", steps=100_000, every=5)
            train = file.with_name("train.py")
            mark = f"import os, tempfile; tempfile.mkstemp(dir={str(self.marks)!r})\n"
            train.write_text(mark + train.read_text())
            done = midstream("--fleet", fleet, "--launch", file, "--on", "liar", "--run-id", "live")
            assert done.code == 0, done.stderr
            self.liar.wait(lambda run: len(run.checkpoints()) > 1, "two checkpoints of theirs")
        self.executed = len(list(self.marks.iterdir()))
        assert self.executed == 1
        start = self.liar.fence.start
        records.Fence(CLAIMED, "liar", 3, [records.Seal(CLAIMED - 1, 3).to_json()], start=start).write(
            self.liar.paths.fence
        )
        self.liar.wait(lambda run: not run.running, "the end of their driver, whose epoch has passed on")
        self.process = subprocess.Popen(["sleep", "3600"])
        process = records.identify(self.process.pid)
        assert process is not None
        status = records.Status.read(self.liar.paths.attempt(1).status())
        shown = {**status.to_json(), **process.to_json(), "state": records.TRAINING, "step": 500}
        records.write_json(self.liar.paths.attempt(1).status(), shown)
        assert self.liar.running

    def run(self, *arguments: str) -> tuple[int, str]:
        done = midstream("--fleet", self.fleet, *arguments)
        return done.code, done.stdout + done.stderr

    def assert_nothing_taken(self, owner: str = "good") -> None:
        assert self.good.fence.owner == owner
        assert self.good.fence.epoch < CLAIMED
        assert len(list(self.marks.iterdir())) == self.executed, "files of the claim were executed"
        assert not list(self.third.glob("runs/live/**/train.py"))


@pytest.fixture
def hosts(lab: Lab, runs: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts(lab, runs, tmp_path, monkeypatch)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.drawn
@pytest.mark.parametrize("chain", ["stranger's", "copied", "none"])
def test_claim_is_shown_and_decides_nothing(hosts: Hosts, chain: str) -> None:
    if chain == "copied":
        shutil.copy(hosts.good.paths.ownership, hosts.liar.paths.ownership)
    elif chain == "none":
        os.unlink(hosts.liar.paths.ownership)
    code, shown = hosts.run("--status")
    rows = {words[1]: line for line in shown.splitlines() if (words := line.split())[:1] == ["live"]}
    assert code == 0, shown
    assert "former copy" not in rows["good"], shown
    assert "(claim)" in rows["liar"], shown
    code, shown = hosts.run("--metrics", "live", "--json")
    assert code == 0, shown
    found = [json.loads(line) for line in shown.splitlines() if line.startswith('{"event": "metrics"')]
    losses = {row["global_step"]: row["train/loss"] for row in hosts.good.rows() if "train/loss" in row}
    assert found, shown
    assert all(row["train/loss"] == losses[row["global_step"]] for row in found if row["global_step"] in losses)
    code, shown = hosts.run("--migrate", "live", "--to", "third", "--mode", "cold", "--dry-run", "--json")
    assert code == 0, shown
    [plan] = [json.loads(line) for line in shown.splitlines() if line.startswith('{"event": "plan"')]
    assert (plan["route"]["source"], plan.get("trainer")) == ("good", None)
    code, shown = hosts.run("--repair", "live", "--on", "good", "--yes")
    assert code in (0, 2, 3), shown
    hosts.assert_nothing_taken()
    assert hosts.good.running
    code, shown = hosts.run("--stop", "live")
    assert (code, "stopping live on good" in shown) == (0, True), shown
    hosts.good.wait(lambda run: not run.running, "its end")
    assert hosts.process.poll() is None, "a claim's process is not touched"
    hosts.assert_nothing_taken()


@pytest.mark.drawn
def test_damaged_claim_blocks_nothing(hosts: Hosts) -> None:
    Path(hosts.liar.paths.fence).write_text("{")
    code, shown = hosts.run("--migrate", "live", "--to", "third", "--mode", "cold", "--dry-run")
    assert code == 0, shown
    code, shown = hosts.run("--stop", "live")
    assert (code, "stopping live on good" in shown) == (0, True), shown
    hosts.good.wait(lambda run: not run.running, "its end")
    code, shown = hosts.run("--launch", hosts.good.paths.config, "--on", "good", "--run-id", "live")
    assert code == 0, shown
    hosts.good.wait(lambda run: run.running, "its start")
    hosts.assert_nothing_taken()


def trains(run: Run) -> bool:
    status = run.status()
    owned = os.path.exists(run.paths.fence) and os.path.exists(run.paths.lineage)
    return owned and status is not None and status.epoch == run.fence.epoch and status.state == records.TRAINING


@pytest.mark.drawn
def test_guard_migrates_the_proven_copy(hosts: Hosts) -> None:
    guard = start_midstream("--fleet", hosts.fleet, "--guard", "live", "--to", "third", "--yes", "--json")
    moved = Run(hosts.third, "live")
    try:
        hosts.good.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
        status = hosts.good.status()
        assert status is not None
        os.kill(status.pid, signal.SIGKILL)
        moved.wait(trains, "its training", 120.0)
        assert_one_lineage(moved)
        hosts.assert_nothing_taken("third")
    finally:
        guard.send_signal(signal.SIGINT)
        print(*guard.communicate(timeout=60.0))
        if migration_ids():
            kill_operator(newest_migration())
        moved.kill()
