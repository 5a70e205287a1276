"""Migration modes with real engines: warm standbys, live replicas, a lost source."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import TINY, Run, ended, midstream, start_midstream, step_of
from support.migrations.real_migrations import assert_one_lineage, kill_operator, launched, two_hosts
from support.throttled import Throttled

# 40 MB of state and little computation: enough that chunks are sent while the source saves.
HEAVY = ("--model.hidden_dim", "512", "--model.num_layers", "1", "--model.pad_vocab_to_multiple", "2048")


def verdicts(result: dict[str, Any]) -> dict[str, str]:
    return {claim["name"]: claim["verdict"] for claim in result["certificate"]["claims"]}


def wait_for(what: str, words: str, timeout: float = 120.0) -> MigrationDirectory:
    """Wait until the newest migration has an event ``what`` with these words."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if migration_ids():
            directory = MigrationDirectory(migration_ids()[0])
            if any(e.event == what and words in e.message for e in read_events(directory.journal_file)):
                return directory
        time.sleep(0.01)
    raise AssertionError(f"{what} {words!r}: not within {timeout} s")


@pytest.mark.slow  # two minutes
def test_warm_migration_to_eight_devices_over_ssh(lab: Lab, runs: Callable[..., Run]) -> None:
    """2 -> 8 devices over SSH, in bf16; then a new launch on the target."""
    small, large = lab.host("small", devices=2), lab.host("large", devices=8)
    fleet = lab.fleet_file(small=small.config, large=large.config)
    source, target = runs(small.root, "r"), runs(large.root, "r")
    launched(fleet, source, "small", *HEAVY, "--trainer.mp", "p=f32,c=bf16")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "large", "--healthy-steps", "2", "--json")
    assert moved.code == 0, (moved.stdout, moved.stderr)
    assert verdicts(moved.result) == {
        "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "not checked",
        "environment": "verified",
    }  # fmt: skip
    sealed = moved.result["certificate"]["step"]
    notes = [event["message"] for event in moved.of("note")]
    assert any("it waits" in note for note in notes)
    # The source trained on while the target was prepared: the rehearsal used an earlier step than the seal.
    rehearsal = next(event["message"] for event in moved.of("command") if "rehearses on" in event["message"])
    assert step_of(rehearsal.split(" rehearses on ")[1].split()[0]) < sealed
    measured = moved.result["downtime"]["measured"]
    assert measured["compile"] == measured["install"] == measured["verify"] == 0.0
    assert sum(measured.values()) == pytest.approx(moved.result["downtime"]["total"])
    assert (target.attempt, target.rows(2)[0]["global_step"]) == (2, sealed)
    log = Path(target.paths.attempt(2).log()).read_text()
    assert log.index("rehearsed 3 updates") < log.index(f"restored step-{sealed}-a001")
    assert len(target.rows(1)) == sealed, "the history was copied"
    assert not list(Path(target.paths.checkpoint(f"step-{sealed}-a001")).glob(".ahead-*"))
    assert_one_lineage(target)

    # The run is stopped on its target and launched again: it continues from its own checkpoint there.
    target.wait_step(sealed + 2)
    stopped = midstream("--stop", "r", "--fleet", fleet, "--json")
    assert stopped.code == 0, stopped.stderr
    own = stopped.result["step"]
    target.wait(lambda run: not run.running, "its end")
    again = midstream("--fleet", fleet, "--launch", TINY, "--on", "large", "--run-id", "r")
    assert again.code == 0, again.stderr
    target.wait(lambda run: bool(run.rows(3)), "the third attempt")
    assert target.rows(3)[0]["global_step"] == own > sealed


@pytest.mark.slow
def test_consecutive_migrations_in_different_modes(lab: Lab, runs: Callable[..., Run]) -> None:
    """2 -> 8 devices warm, 8 -> 2 with accumulation cold, then warm to a third host."""
    one, two, three = lab.local("one", devices=2), lab.local("two", devices=8), lab.local("three", devices=2)
    fleet = lab.fleet_file(one=one, two=two, three=three)
    source, last = runs(one.root, "r"), runs(three.root, "r")
    runs(two.root, "r")
    launched(fleet, source, "one", "--trainer.per_device_parallelism", "8")
    for target, mode in (("two", "warm"), ("one", "cold"), ("three", "warm")):
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", target, "--mode", mode, "--healthy-steps", "1",
                          "--json")  # fmt: skip
        assert moved.code == 0, (moved.stdout, moved.stderr)
        assert moved.result["certificate"]["valid"]
    lineage = records.Lineage.read(last.paths.lineage).entries
    assert [(entry.attempt, entry.epoch, entry.target, entry.devices) for entry in lineage] == [
        (1, 1, "one", 2), (2, 2, "two", 8), (3, 3, "one", 2), (4, 4, "three", 2),
    ]  # fmt: skip
    assert all(entry.last_step is not None for entry in lineage[:-1])
    assert_one_lineage(last)


@pytest.mark.slow
def test_source_lost_migrates_from_earlier_host(lab: Lab, runs: Callable[..., Run]) -> None:
    """The run's host is unreachable; the host before it has a checkpoint."""
    one, two, three = lab.local("one", devices=2), lab.host("two", devices=2), lab.local("three", devices=4)
    fleet = lab.fleet_file(one=one, two=two.config, three=three)
    source, lost, last = runs(one.root, "r"), runs(two.root, "r"), runs(three.root, "r")
    launched(fleet, source, "one")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "cold", "--healthy-steps", "1",
                      "--json")  # fmt: skip
    assert moved.code == 0, (moved.stdout, moved.stderr)
    sealed = moved.result["certificate"]["step"]
    two.stop()
    lost.kill()
    refused = midstream("--fleet", fleet, "--migrate", "r", "--to", "three", "--json")
    assert refused.code == 3, refused.stdout
    assert "--source-lost" in refused.stderr
    assert last.attempt == 0
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "three", "--source-lost", "--yes",
                      "--healthy-steps", "1", "--json")  # fmt: skip
    assert moved.code == 0, (moved.stdout, moved.stderr)
    assert moved.result["certificate"]["valid"]
    assert moved.result["certificate"]["step"] == sealed
    assert (last.fence.epoch, last.fence.owner) == (3, "three")
    assert_one_lineage(last)


@pytest.mark.slow  # each kill has to hit its moment, and is tried again where it came late
def test_standby_may_be_killed_before_and_after_seal(lab: Lab, runs: Callable[..., Run]) -> None:
    """Before the seal another standby starts; after it the run starts without one."""
    fleet, source, target = two_hosts(lab, runs, 2, 4)
    launched(fleet, source, "one")
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "2", "--json")
    directory = wait_for("command", "it rehearses on")
    kill_operator(directory)
    assert ended(follower) == 4
    assert source.running
    target.wait(lambda run: (status := run.status(2)) is not None and status.state == "waiting", "the standby")
    target.kill()
    follower = start_midstream("--continue", directory.migration, "--json")
    wait_for("command", "command: save, seal")
    kill_operator(directory)
    assert ended(follower) == 4
    assert target.attempt == 3
    status = target.status(3)
    assert status is not None
    assert status.state == "waiting", "a standby continues on command alone"
    source.wait(lambda run: run.fence.epoch == 2 and not run.running, "the seal")
    target.kill()
    done = midstream("--continue", directory.migration, "--json")
    assert done.code == 0, (done.stdout, done.stderr)
    assert any("a new attempt is started there" in event["message"] for event in done.of("note"))
    lineage = records.Lineage.read(target.paths.lineage).entries
    assert [(entry.attempt, entry.target) for entry in lineage] == [(1, "one"), (4, "two")]
    assert_one_lineage(target)


@pytest.mark.drawn
def test_failed_rehearsal_leaves_source_training(lab: Lab, runs: Callable[..., Run]) -> None:
    fleet, source, target = two_hosts(lab, runs, 2, 2)
    launched(fleet, source, "one", "--trainer.checkpointer.keep", "[{every: 5}]")
    source.wait(lambda run: len(run.checkpoints()) >= 1, "a checkpoint")
    moved = midstream(
        "--fleet", fleet, "--migrate", "r", "--to", "two", "--json", "--", "--model.attn_backend", "splash"
    )
    assert moved.code == 1, (moved.stdout, moved.stderr)
    assert moved.result["outcome"] == "rolled back"
    assert "the rehearsal on two failed" in moved.result["message"]
    assert "splash attention needs" in moved.result["message"]
    assert (source.attempt, source.running, source.fence.epoch) == (1, True, 1)
    status = source.status()
    assert status is not None
    source.wait_step(status.step + 2)
    assert not Path(target.paths.lineage).exists()


@pytest.mark.slow  # a complete migration; the campaign has sleeping laptops
def test_suspended_operator_and_skewed_clocks(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """Suspend the operator in the cutover; the engines' clocks are 4 hours apart."""
    one = lab.local("one", devices=2)
    two = lab.local("two", devices=4)
    skewed = {"one": clock(tmp_path / "one", -7200.0), "two": clock(tmp_path / "two", 7200.0)}
    one = dataclasses.replace(one, env={**one.env, "PYTHONPATH": str(skewed["one"])})
    two = dataclasses.replace(two, env={**two.env, "PYTHONPATH": str(skewed["two"])})
    fleet = lab.fleet_file(one=one, two=two)
    source, target = runs(one.root, "r"), runs(two.root, "r")
    launched(fleet, source, "one")
    assert source.rows(1)[0]["time"] < time.time() - 7000, "its clock is wrong"
    follower = start_midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--healthy-steps", "2", "--json")
    directory = wait_for("command", "command: save, seal")
    pid = int((directory.path / ".lock").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        source.wait(lambda run: not run.running, "the source's end")
        assert not (target.rows() if target.attempt >= 2 else []), "no engine started during the suspension"
    finally:
        os.kill(pid, signal.SIGCONT)
    out, errors = follower.communicate(timeout=200)
    assert follower.returncode == 0, (out, errors)
    result = json.loads(out.splitlines()[-1])
    assert result["certificate"]["valid"]
    assert 0 < result["downtime"]["total"] < 600
    assert source.handed_over == target.handed_over
    assert_one_lineage(target)


def clock(directory: Path, seconds: float) -> Path:
    """Write a PYTHONPATH directory that sets programs' clocks ``seconds`` ahead."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        f"import time\n_true = time.time\ntime.time = lambda: _true() + {seconds}\n"
    )
    return directory


@pytest.mark.drawn
def test_live_migration_never_stops_the_source(lab: Lab, runs: Callable[..., Run]) -> None:
    fleet, source, target = two_hosts(lab, runs, 2, 4)
    launched(fleet, source, "one")
    status = source.status()
    assert status is not None
    with Throttled([status.pid], 0.05, 0.25):
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "live",
                          "--healthy-steps", "2", "--json", timeout=400)  # fmt: skip
    assert moved.code == 0, (moved.stdout, moved.stderr)
    assert set(verdicts(moved.result).values()) == {"verified"}, moved.result["certificate"]["claims"]
    sealed = moved.result["certificate"]["step"]
    continuity = next(claim for claim in moved.result["certificate"]["claims"] if claim["name"] == "continuity")
    assert continuity["evidence"]["parameter_drift"]["step"] == sealed
    assert continuity["evidence"]["parameter_drift"]["distance"] < 1e-3
    downtime = moved.result["downtime"]
    assert sum(downtime["measured"].values()) == pytest.approx(downtime["total"])
    done = [event["phase"] for event in moved.of("phase") if event["state"] == "done"]
    assert done == ["prepare", "cutover", "relaunch", "certify", "finish"]
    assert source.rows(1)[-1]["global_step"] == sealed - 1
    assert target.attempt == 2
    replay = records.parse_metrics(Path(target.paths.attempt(2).replay).read_text().splitlines())
    assert target.rows(2)[0]["global_step"] == sealed
    first = {name: value for name, value in target.rows(2)[0].items() if name != records.START_NUMBER}
    assert first == next(row for row in replay if row["global_step"] == sealed), "the replica had no start of its own"
    assert f"step-{sealed}-a001" in target.checkpoints(), "the source's checkpoint was copied"
    assert any(name.endswith("-a002") for name in target.checkpoints()), "and the target saved its own"
    assert source.handed_over == target.handed_over
    entries = records.Lineage.read(target.paths.lineage).entries
    assert [(entry.attempt, entry.epoch, entry.first_step) for entry in entries] == [(1, 1, 0), (2, 2, sealed)]
    assert_one_lineage(target)
    rechecked = midstream("--verify", moved.result["migration"], "--fleet", fleet)
    assert rechecked.code == 0, (rechecked.stdout, rechecked.stderr)
    assert "verified again" in rechecked.stdout


@pytest.mark.slow
def test_live_migration_continues_as_warm_on_request(lab: Lab, runs: Callable[..., Run]) -> None:
    """The target has fewer devices than the source, and never catches up."""
    fleet, source, target = two_hosts(lab, runs, 4, 2)
    launched(fleet, source, "one", "--trainer.mp", "p=f32,c=bf16")
    migrate = ("--fleet", fleet, "--migrate", "r", "--to", "two", "--mode", "live", "--healthy-steps", "2", "--json")
    refused = midstream(*migrate)
    assert refused.code == 3
    assert "bf16" in refused.stderr
    follower = start_midstream(*migrate, "--yes")
    directory = wait_for("command", "it rehearses on")
    again = midstream("--continue", directory.migration, "--mode", "warm", "--json", timeout=400)
    assert again.code == 0, (again.stdout, again.stderr)
    assert ended(follower) == 0
    notes = [event.message for event in read_events(directory.journal_file) if event.event == "note"]
    assert any("continuing as a warm migration" in note for note in notes)
    assert again.result["certificate"]["valid"]
    sealed = again.result["certificate"]["step"]
    evidence = records.Restore.read(target.paths.attempt(2).restore)
    assert evidence.checkpoint == f"step-{sealed}-a001"
    assert_one_lineage(target)
