"""Migrations between two hosts with 2 devices each and one host with 4."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.journal import read_events
from midstream.migrate.journal.migration_directory import MigrationDirectory, migration_ids
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import COMPILED, TINY, Run, ended, midstream, start_midstream
from support.launched_processes import kill_launched

pytestmark = pytest.mark.system
# An array of 4 MiB: the smallest that is divided among the hosts.
TRAINING = (
    "--trainer.num_train_steps", "100000", "--model.pad_vocab_to_multiple", "16384",
    "--trainer.jax_compilation_cache_dir", COMPILED,
)  # fmt: skip


@pytest.fixture
def _ended_later(lab: Lab) -> Iterator[None]:
    """Kill the started processes after the test."""
    yield
    kill_launched(lab.directory)


@pytest.fixture
def fleet(lab: Lab, _ended_later: None) -> Path:
    """Write a fleet file: target ``pair`` (a and b, 2 devices each), and c with 4."""
    file = lab.fleet_file(**{name: lab.host(name, devices=4 if name == "c" else 2).config for name in "abc"})
    file.write_text(f"{file.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b]}}}}\n")
    return file


@pytest.fixture
def sharing(lab: Lab, _ended_later: None) -> Path:
    """Write a fleet file like ``fleet``, in which a and b share a root, as over NFS."""
    root = str(lab.directory / "nfs")
    pair = {name: replace(lab.host(name, devices=2).config, root=root) for name in "ab"}
    file = lab.fleet_file(**pair, c=lab.host("c", devices=4).config)
    file.write_text(f"{file.read_text()}targets: {{pair: {{type: hosts, hosts: [a, b], shared_root: {root}}}}}\n")
    return file


def until(what: str, look: Callable[[], Any], timeout: float = 300.0) -> Any:
    """Return the first true result of ``look``; fail with the last events."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        if time.monotonic() > deadline:
            lines = [f"{event.time:.1f} {event.phase} {event.state} {event.message}" for event in newest_journal()[1]]
            pytest.fail(f"{what}: not within {timeout:.0f} s\n" + "\n".join(lines[-20:]))
        time.sleep(0.02)
    return found


def launch(fleet: Path, target: str, *flags: str) -> None:
    done = midstream("--fleet", fleet, "--launch", TINY, "--on", target, "--run-id", "r", "--", *TRAINING, *flags)
    assert done.code == 0, done.stderr


def migrate_arguments(fleet: Path, target: str, *flags: str) -> tuple[str | Path, ...]:
    return ("--fleet", fleet, "--migrate", "r", "--to", target, "--healthy-steps", "1", "--json", *flags)


def newest_journal() -> tuple[MigrationDirectory | None, list[Any]]:
    """Return the newest migration, and its events."""
    found = migration_ids()
    directory = MigrationDirectory(found[0]) if found else None
    return directory, read_events(directory.journal_file) if directory else []


def kill_operator_after(fact: str) -> MigrationDirectory:
    """Kill the newest migration's process once its journal has the fact."""

    def recorded() -> MigrationDirectory | None:
        directory, events = newest_journal()
        return directory if any(fact in event.detail for event in events) else None

    directory: MigrationDirectory = until(fact, recorded)
    os.kill(int((directory.path / ".lock").read_text()), signal.SIGKILL)
    return directory


def of_process(run: Run, process: int) -> records.Status | None:
    """Return a process's status in the newest attempt."""
    return records.Status.read_or_none(run.paths.attempt(run.attempt).status(process)) if run.attempt else None


def assert_one_lineage(run: Run, attempts: set[int]) -> None:
    spliced = run.spliced()
    assert sorted(spliced) == list(range(max(spliced) + 1)), "every step once"
    assert {row["attempt"] for row in spliced.values()} == attempts


@pytest.mark.slow  # eight engines start, on two cores
def test_group_of_killed_process_migrates_to_one_host_and_back(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """2 x 2 -> 1 x 4 -> 2 x 2, after one process was killed.

    The other process ends and names the first failure; the parts of the newest checkpoint, on two hosts, are collected.
    """
    a, b, c = (runs(lab.directory / name / "root", "r") for name in "abc")
    launch(fleet, "pair", "--model.num_layers", "1")
    a.wait_step(1, 300)
    lost = of_process(b, 1)
    assert lost is not None
    os.kill(lost.pid, signal.SIGUSR1)  # save and go on
    until("a checkpoint of both", lambda: set(a.checkpoints()) & set(b.checkpoints()))
    os.kill(lost.pid, signal.SIGKILL)
    until("the end of the other", lambda: not a.running)
    assert "process 1 (b, pid" in str(a.status())

    # Steps after its newest checkpoint are discarded, hence --yes.
    there = midstream(*migrate_arguments(fleet, "c", "--mode", "cold", "--yes"), timeout=400)
    assert there.code == 0, (there.stdout, there.stderr)
    step, name = there.result["certificate"]["step"], there.result["certificate"]["checkpoint"]
    assert a.handed_over == b.handed_over == c.handed_over, "every host has the seal"
    assert (c.fence.epoch, c.fence.owner, c.fence.sealed_step) == (2, "c", step)
    shares, collected = [run.manifest(name) for run in (a, b)], c.manifest(name)
    assert [entry.host for entry in shares[0].spread_hosts] == ["a", "b"]
    assert shares[0].elsewhere, "each host has other chunks"
    assert shares[1].elsewhere
    assert (collected.hosts, collected.root_digest) == ([], shares[0].root_digest)

    back = midstream(*migrate_arguments(fleet, "pair", "--mode", "cold"), timeout=400)
    assert back.code == 0, (back.stdout, back.stderr)
    assert a.handed_over == b.handed_over == c.handed_over
    assert (a.fence.epoch, a.fence.owner) == (3, "pair")
    assert not c.running
    name = back.result["certificate"]["checkpoint"]
    assert a.manifest(name) == b.manifest(name), "each host has the complete checkpoint"
    for status in (of_process(a, 0), of_process(b, 1)):
        assert status is not None
        assert records.is_running(status.identity)
        assert (status.attempt, status.processes, len(status.devices)) == (3, 2, 4)
    assert_one_lineage(a, {1, 2, 3})


@pytest.mark.slow  # a minute of both cores, and more
def test_group_migrates_to_one_host_and_back(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    a, b, c = (runs(lab.directory / name / "root", "r") for name in "abc")
    launch(fleet, "pair")
    a.wait_step(4, 240)

    # 2 x 2 -> 1 x 4: the source is sealed on both hosts, and their parts of the checkpoint are collected.
    there = midstream(*migrate_arguments(fleet, "c", "--mode", "cold"), timeout=400)
    assert there.code == 0, (there.stdout, there.stderr)
    assert there.result["certificate"]["valid"]
    step, name = there.result["certificate"]["step"], there.result["certificate"]["checkpoint"]
    assert a.handed_over == b.handed_over == c.handed_over, "every host has the seal"
    assert (c.fence.epoch, c.fence.owner, c.fence.sealed_step) == (2, "c", step)
    for run, process in ((a, 0), (b, 1)):
        migration_lock = records.MigrationLock.read(run.paths.migration_lock)
        assert migration_lock.migration == there.result["migration"], "the migration has the lock on every host"
        status = of_process(run, process)
        assert status is not None
        assert (status.state, status.step, status.host) == ("stopped", step, "ab"[process])
    shares = [run.manifest(name) for run in (a, b)]
    assert [entry.host for entry in shares[0].spread_hosts] == ["a", "b"]
    assert shares[0].elsewhere, "each host has other chunks"
    assert shares[1].elsewhere
    collected = c.manifest(name)
    assert (collected.hosts, collected.root_digest) == ([], shares[0].root_digest)
    assert all(Path(c.paths.checkpoint(name), entry.path).exists() for entry in collected.object_entries)
    checked = midstream("--verify", there.result["migration"], "--fleet", fleet)
    assert checked.code == 0, (checked.stdout, checked.stderr)
    assert "spread over a, b" in checked.stdout

    # 1 x 4 -> 2 x 2: both processes are standbys, and take over.
    back = midstream(*migrate_arguments(fleet, "pair"), timeout=400)
    assert back.code == 0, (back.stdout, back.stderr)
    assert {claim["name"]: claim["verdict"] for claim in back.result["certificate"]["claims"]} == {
        "state": "verified", "data": "verified", "reference losses": "verified", "continuity": "not checked",
        "environment": "verified",
    }  # fmt: skip
    step, name = back.result["certificate"]["step"], back.result["certificate"]["checkpoint"]
    assert a.handed_over == b.handed_over == c.handed_over
    assert (a.fence.epoch, a.fence.owner, a.fence.sealed_step) == (3, "pair", step)
    assert not c.running
    assert a.manifest(name) == b.manifest(name), "each host has the complete checkpoint"
    statuses = [of_process(a, 0), of_process(b, 1)]
    assert [status and (status.state, status.processes, len(status.devices)) for status in statuses] == [
        ("training", 2, 4)
    ] * 2
    lineage = records.Lineage.read(a.paths.lineage).entries
    assert [(entry.attempt, entry.epoch, entry.target, entry.devices) for entry in lineage] == [
        (1, 1, "pair", 4), (2, 2, "c", 4), (3, 3, "pair", 4),
    ]  # fmt: skip
    assert_one_lineage(a, {1, 2, 3})


@pytest.mark.slow  # a minute of both cores, and more
def test_sealed_group_is_rolled_back(lab: Lab, fleet: Path, runs: Callable[..., Run]) -> None:
    """Kill the operator after the seal: a rollback restarts both hosts."""
    a, b, c = (runs(lab.directory / name / "root", "r") for name in "abc")
    launch(fleet, "pair")
    a.wait_step(4, 240)
    follower = start_midstream(*migrate_arguments(fleet, "c", "--mode", "cold"))
    migration = kill_operator_after("sealed").migration
    assert ended(follower, 120) == 4
    sealed = a.fence.sealed_step
    assert a.handed_over == b.handed_over
    back = midstream("--rollback", migration, "--json", timeout=400)
    assert back.code == 0, (back.stdout, back.stderr)
    assert a.handed_over == b.handed_over
    assert (a.fence.epoch, a.fence.owner) == (3, "pair")
    held = [records.MigrationLock.held_or_none(run.paths.migration_lock) for run in (a, b)]
    assert held == [None, None], "the lock is released on both hosts"
    a.wait(lambda run: bool(run.rows(2)), "a step of the second attempt", 240)
    assert a.rows(2)[0]["global_step"] == sealed
    restored = records.Restore.read(a.paths.attempt(2).restore)
    assert restored.root_digest == restored.expected_root_digest == a.manifest(f"step-{sealed}-a001").root_digest
    assert c.attempt == 0
    assert_one_lineage(a, {1, 2})


@pytest.mark.slow  # a minute of both cores, and more
def test_guard_migrates_group_that_lost_process(lab: Lab, sharing: Path, runs: Callable[..., Run]) -> None:
    """One process of a group on a shared file system is killed.

    All processes end; status and guard name the first failure, and the guard migrates from the newest checkpoint.
    """
    nfs, c = runs(lab.directory / "nfs", "r"), runs(lab.directory / "c" / "root", "r")
    launch(sharing, "pair", "--trainer.checkpointer.keep", '[{"every": 5}]')
    nfs.wait(lambda run: bool(run.checkpoints()), "the first checkpoint", 240)
    lost = of_process(nfs, 1)
    assert lost is not None
    for process in range(2):
        log = midstream("--fleet", sharing, "--log", "r", "--process", str(process))
        assert log.stdout.splitlines()[0] == Path(nfs.paths.attempt(1).log(process)).read_text().splitlines()[0]
    guard = start_midstream("--fleet", sharing, "--guard", "r", "--to", "c", "--tries", "1", "--json")
    late = threading.Timer(300.0, guard.kill)
    late.start()
    try:
        os.kill(lost.pid, signal.SIGKILL)
        assert guard.stdout is not None
        events = []
        while not events or events[-1]["kind"] not in ("finished", "needs you"):
            line = guard.stdout.readline()
            assert line, guard.communicate()
            events.append(json.loads(line))
    finally:
        late.cancel()
        guard.kill()
        guard.communicate()
    acted = [event for event in events if event["kind"] != "stalled"]  # until process 0 detects the failure
    assert [event["kind"] for event in acted] == ["lost", "migrating", "finished"], events
    assert "process 1 on b exited, and the others ended because of it: killed with SIGKILL" in acted[0]["message"]
    certificate = json.loads(MigrationDirectory(acted[1]["migration"]).certificate_file.read_text())
    assert Certificate.from_json(certificate).valid
    assert not nfs.manifest(certificate["checkpoint"]).hosts, "on a shared file system no checkpoint is spread"
    assert nfs.handed_over == c.handed_over
    assert_one_lineage(c, {1, 2})


@pytest.mark.slow  # a minute of both cores, and more
def test_killed_process_of_target_group_rolls_back(lab: Lab, sharing: Path, runs: Callable[..., Run]) -> None:
    nfs, c = runs(lab.directory / "nfs", "r"), runs(lab.directory / "c" / "root", "r")
    launch(sharing, "c")
    c.wait_step(4, 240)
    follower = start_midstream(*migrate_arguments(sharing, "pair", "--mode", "cold"))
    started = until("process 1 on b", lambda: of_process(nfs, 1) or follower.poll() is not None)
    assert isinstance(started, records.Status), follower.communicate()
    os.kill(started.pid, signal.SIGKILL)
    out, err = follower.communicate(timeout=400)
    assert follower.returncode == 1, (out, err)
    assert "process 1 on b failed: killed with SIGKILL" in json.loads(out.splitlines()[-1])["message"]
    assert c.running
    assert (c.fence.epoch, c.fence.owner) == (3, "c")
    assert c.handed_over == nfs.handed_over
    copied = [event for event in newest_journal()[1] if "to other hosts" in str(event.detail.get("what", ""))]
    assert copied == [], "hosts with a shared file system get one copy"
    still = subprocess.run(["pgrep", "-f", f"--trainer.root {lab.directory / 'nfs'} "], capture_output=True, text=True)
    assert still.stdout == "", "no process of the group is left"
    assert_one_lineage(c, {1, 3})
