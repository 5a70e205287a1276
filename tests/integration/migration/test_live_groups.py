"""Live migrations between groups of hosts, each host with a process of its own."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import COMPILED, TINY, Run, midstream, start_midstream
from support.launched_processes import kill_launched
from support.migrations.real_migrations import assert_one_lineage, kill_operator, newest_migration
from support.throttled import Throttled

pytestmark = pytest.mark.system
# An array of 4 MiB: the smallest that is divided among the hosts.
TRAINING = (
    "--trainer.num_train_steps", "100000", "--model.pad_vocab_to_multiple", "16384", "--model.num_layers", "1",
    "--trainer.jax_compilation_cache_dir", COMPILED,
)  # fmt: skip


@pytest.fixture
def fleet(lab: Lab) -> Iterator[Path]:
    """Write a fleet file: targets ``old`` (a and b) and ``new`` (c and d), 2 devices each; kill what was started."""
    yield fleet_file(lab)
    kill_launched(lab.directory)


def fleet_file(lab: Lab, **env: dict[str, str]) -> Path:
    """Write the fleet file of `fleet`. ``env``: further environment of a host's engines, by its name."""
    hosts = {name: lab.host(name, devices=2).config for name in "abcd"}
    hosts = {name: replace(host, env={**host.env, **env.get(name, {})}) for name, host in hosts.items()}
    file = lab.fleet_file(**hosts)
    groups = "targets:\n  old: {type: hosts, hosts: [a, b]}\n  new: {type: hosts, hosts: [c, d]}\n"
    file.write_text(file.read_text() + groups)
    return file


def launched(fleet: Path, target: str, *runs: Run) -> list[int]:
    """Launch the run on a target, and wait for its fourth step; return the pids of its processes on these hosts."""
    done = midstream("--fleet", fleet, "--launch", TINY, "--on", target, "--run-id", "r", "--", *TRAINING)
    assert done.code == 0, done.stderr
    runs[0].wait_step(4, 240)
    return [records.Status.read(run.paths.attempt(1).status(process)).pid for process, run in enumerate(runs)]


REPLAYS = "the replica is at step"  # in a note
# On a host with it, the replica keeps other parameters than it has: as memory does that is not sound.
STRANGE_SHARD = """
import importlib.abc, importlib.machinery, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "midstream_engine.attempt.replica":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def changed(module):
            execute(module)
            keep = module.keep

            def kept(state):
                arrays = keep(state)
                for _, piece in arrays[0].pieces + arrays[-1].pieces:
                    piece *= 1.5
                return arrays

            module.keep = kept

        spec.loader.exec_module = changed
        return spec

sys.meta_path.insert(0, Finder())
"""


def started_live(fleet: Path, target: str) -> Popen[str]:
    return start_midstream("--fleet", fleet, "--migrate", "r", "--to", target, "--mode", "live",
                           "--healthy-steps", "2", "--json")  # fmt: skip


def result_of(moving: Popen[str]) -> tuple[dict[str, Any], list[str]]:
    """Wait for a migration's end; return its result and its notes."""
    out, errors = moving.communicate(timeout=500)
    events = [json.loads(line) for line in out.splitlines()]
    notes = [event["message"] for event in events if event["event"] == "note"]
    assert moving.returncode == 0, (notes, events[-1:], errors)
    return events[-1], notes


def wait_note(leader: Run, words: str, migrations: int = 1) -> None:
    """Wait until the newest of so many migrations has a note with these words."""

    def noted(_run: Run) -> bool:
        return len(migration_ids()) == migrations and any(
            event.event == "note" and words in event.message for event in read_events(newest_migration().journal_file)
        )

    leader.wait(noted, words, 400)


@pytest.mark.drawn
def test_group_migrates_live_to_another_group(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    a, b, c, d = (runs(lab.directory / name / "root", "r") for name in "abcd")
    with Throttled(launched(fleet, "old", a, b), 0.3, 0.6):
        moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "new", "--mode", "live",
                          "--healthy-steps", "2", "--json", timeout=500)  # fmt: skip
    assert moved.code == 0, (moved.stdout, moved.stderr)
    claims = {claim["name"]: claim for claim in moved.result["certificate"]["claims"]}
    assert {claim["verdict"] for claim in claims.values()} == {"verified"}, claims
    assert not any("continuing as a warm migration" in event["message"] for event in moved.of("note"))
    step, name = moved.result["certificate"]["step"], moved.result["certificate"]["checkpoint"]

    # Every process of the replica has compared its own shards with the sealed ones.
    drift = claims["continuity"]["evidence"]["parameter_drift"]
    assert (drift["step"], drift["root_digest"]) == (step, moved.result["certificate"]["root_digest"])
    assert [(shard["process"], shard["host"]) for shard in drift["shards"]] == [(0, "c"), (1, "d")]
    assert drift["shards"][0]["parameters"] == drift["shards"][1]["parameters"] == drift["parameters"] / 2
    assert max(shard["distance"] for shard in drift["shards"]) < 1e-3
    assert "compared in 2 shards" in claims["continuity"]["statement"]

    assert moved.result["downtime"]["total"] < 1.0
    for process, run in enumerate((a, b)):
        stopped = records.Status.read(run.paths.attempt(1).status(process))
        assert (stopped.state, stopped.step) == (records.STOPPED, step)
    for process, run in enumerate((c, d)):
        trains = records.Status.read(run.paths.attempt(2).status(process))
        assert (trains.processes, trains.epoch, len(trains.devices)) == (2, 2, 4)
        assert name in run.checkpoints(), "every host of the target got the sealed checkpoint"
    assert a.handed_over == b.handed_over == c.handed_over == d.handed_over
    first = {key: value for key, value in c.rows(2)[0].items() if key != records.START_NUMBER}
    replay = records.parse_metrics(Path(c.paths.attempt(2).replay).read_text().splitlines())
    assert first == next(row for row in replay if row["global_step"] == step), "the replica had no start of its own"
    assert_one_lineage(c)
    rechecked = midstream("--verify", moved.result["migration"], "--fleet", fleet)
    assert rechecked.code == 0, (rechecked.stdout, rechecked.stderr)
    assert "verified again: " in rechecked.stdout
    assert "compared in 2 shards" in rechecked.stdout


@pytest.mark.drawn
@pytest.mark.parametrize("process", [0, 1])
def test_killed_process_of_the_replica_is_named(process: int, lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """The others end with it, and the migration continues as a warm one, with another standby."""
    a, b, c, d = (runs(lab.directory / name / "root", "r") for name in "abcd")
    with Throttled(launched(fleet, "old", a, b), 0.3, 0.6):
        moving = started_live(fleet, "new")
        wait_note(c, REPLAYS)
        os.kill(records.Status.read((c, d)[process].paths.attempt(2).status(process)).pid, signal.SIGKILL)
        result, notes = result_of(moving)
    (why,) = [note for note in notes if "continuing as a warm migration" in note]
    name = "cd"[process]  # by the record of its end, or, where that is not there yet, by the other's
    ended = f"process {process} on {name} failed: killed with SIGKILL", f"process {process} ({name}, pid "
    assert any(words in why for words in ended), why
    assert result["certificate"]["valid"]
    assert (c.attempt, c.fence.owner) == (3, "new")
    assert records.Restore.read(c.paths.attempt(3).restore).checkpoint == result["certificate"]["checkpoint"]
    assert_one_lineage(c)


@pytest.mark.drawn
def test_source_group_that_loses_a_process_is_still_migrated(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """A killed process ends its group: the migration continues from the newest checkpoint, as a warm one."""
    a, b, c, _ = (runs(lab.directory / name / "root", "r") for name in "abcd")
    pids = launched(fleet, "old", a, b)
    with Throttled(pids, 0.3, 0.6):
        moving = started_live(fleet, "new")
        wait_note(c, REPLAYS)
        os.kill(pids[1], signal.SIGKILL)
        result, notes = result_of(moving)
    (why,) = [note for note in notes if "continuing as a warm migration" in note]
    assert "on old has ended (process 1 on b" in why
    assert result["certificate"]["valid"]
    assert a.handed_over == b.handed_over == c.handed_over
    assert_one_lineage(c)


@pytest.mark.drawn
def test_source_group_may_end_at_the_takeover(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """A process is killed before the step that was agreed on: the replica has computed all that the source saved."""
    a, b, c, d = (runs(lab.directory / name / "root", "r") for name in "abcd")
    pids = launched(fleet, "old", a, b)
    with Throttled(pids, 0.3, 0.6):
        moving = started_live(fleet, "new")
        wait_note(c, "the replica takes over at step")
        os.kill(pids[1], signal.SIGKILL)
        result, _ = result_of(moving)
    assert result["certificate"]["valid"]
    assert c.attempt == 2, "the replica was promoted"
    assert a.handed_over == b.handed_over == c.handed_over == d.handed_over
    assert_one_lineage(c)


@pytest.mark.drawn
def test_killed_process_of_the_promoted_group_costs_nothing(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """The run goes on from the sealed state: on the target with another attempt, or on the source."""
    a, b, c, d = (runs(lab.directory / name / "root", "r") for name in "abcd")
    with Throttled(launched(fleet, "old", a, b), 0.3, 0.6):
        moving = started_live(fleet, "new")
        c.wait(lambda run: bool(run.attempt >= 2 and run.rows(2)), "the promoted run", 500)
        os.kill(records.Status.read(d.paths.attempt(2).status(1)).pid, signal.SIGKILL)
        out, errors = moving.communicate(timeout=500)
    result = json.loads(out.splitlines()[-1])
    owner = a if a.fence.owner == "old" else c
    assert (moving.returncode == 0) == (owner is c), (result, errors)
    assert owner is a or result["certificate"]["valid"]
    assert a.handed_over == b.handed_over == c.handed_over == d.handed_over
    assert owner.attempt == 3
    owner.wait(lambda run: run.running and bool(run.rows(3)), "it trains on", 240)
    assert_one_lineage(owner)


@pytest.mark.drawn
def test_promoted_group_is_rolled_back(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """Kill the operator once the replica was promoted: both hosts of the source train on from the sealed step."""
    a, b, c, d = (runs(lab.directory / name / "root", "r") for name in "abcd")
    with Throttled(launched(fleet, "old", a, b), 0.3, 0.6):
        moving = started_live(fleet, "new")
        c.wait(lambda run: bool(run.attempt >= 2 and run.rows(2)), "the promoted run", 500)
        directory = newest_migration()
        kill_operator(directory)
        moving.communicate(timeout=60)
    sealed = a.fence.sealed_step
    back = midstream("--rollback", directory.migration, "--yes", "--json", timeout=400)
    assert back.code == 0, (back.stdout, back.stderr)
    assert a.handed_over == b.handed_over == c.handed_over == d.handed_over
    assert (a.fence.epoch, a.fence.owner) == (3, "old")
    a.wait(lambda run: run.attempt > 1 and bool(run.rows(run.attempt)), "a step after the return", 240)
    assert a.rows(a.attempt)[0]["global_step"] == sealed
    for process, run in enumerate((c, d)):
        ended = records.Status.read(run.paths.attempt(2).status(process))
        assert not records.is_running(ended.identity), "the replica has ended"
    assert_one_lineage(a)


@pytest.mark.drawn
def test_group_migrates_live_to_one_host_and_back(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """2 x 2 -> 1 x 2 -> 2 x 2 devices; a process of the second replica lags, and it catches up all the same."""
    a, b, c = (runs(lab.directory / name / "root", "r") for name in "abc")
    with Throttled(launched(fleet, "old", a, b), 0.3, 0.9):
        there, notes = result_of(started_live(fleet, "c"))
    assert not any("continuing as a warm migration" in note for note in notes), notes
    assert there["certificate"]["valid"]
    assert there["downtime"]["total"] < 1.0
    assert a.handed_over == b.handed_over == c.handed_over
    assert_one_lineage(c)

    with Throttled([records.Status.read(c.paths.attempt(2).status()).pid], 0.2, 0.9):
        moving = started_live(fleet, "old")
        wait_note(a, REPLAYS, 2)
        lags = records.Status.read(b.paths.attempt(3).status(1)).pid
        os.kill(lags, signal.SIGSTOP)
        time.sleep(6.0)
        os.kill(lags, signal.SIGCONT)
        back, notes = result_of(moving)
    assert not any("continuing as a warm migration" in note for note in notes), notes
    assert back["certificate"]["valid"]
    assert back["downtime"]["total"] < 1.0
    continuity = back["certificate"]["claims"][3]
    assert [shard["host"] for shard in continuity["evidence"]["parameter_drift"]["shards"]] == ["a", "b"]
    assert a.handed_over == b.handed_over == c.handed_over
    assert (a.fence.epoch, a.fence.owner) == (3, "old")
    assert_one_lineage(a)


@pytest.mark.drawn
def test_replica_with_a_shard_of_its_own_is_refused(lab: Lab, runs: Callable[..., Run], tmp_path: Path) -> None:
    """One process of the replica has other parameters: it is named, and the run goes back to its source."""
    (tmp_path / "sitecustomize.py").write_text(STRANGE_SHARD)
    fleet = fleet_file(lab, d={"PYTHONPATH": str(tmp_path)})
    a, b, c = (runs(lab.directory / name / "root", "r") for name in "abc")
    try:
        with Throttled(launched(fleet, "old", a, b), 0.3, 0.6):
            moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "new", "--mode", "live",
                              "--healthy-steps", "2", "--json", timeout=500)  # fmt: skip
        assert moved.code == 5, (moved.stdout, moved.stderr)
        sealed = c.fence.sealed_step
        assert "the shard of process 1 (d) is not the run's" in moved.result["message"]
        assert (a.fence.epoch, a.fence.owner) == (3, "old")
        a.wait(lambda run: run.attempt > 1 and bool(run.rows(run.attempt)), "a step after the return", 240)
        assert a.rows(a.attempt)[0]["global_step"] == sealed
        assert a.handed_over == b.handed_over == c.handed_over
        assert_one_lineage(a)
    finally:
        kill_launched(lab.directory)
