"""Several hosts as the source or target group of a migration."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig, Target
from midstream.hosts.host_pool import HostPool
from midstream.migrate.host_group import HostGroup, hosts_of_run, target_of
from midstream.migrate.steps.replica import AttemptRows, ReplicaUnfitError
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from midstream_host.runs import attempts
from support.run_directory import RunDirectory

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Return three hosts with their own roots, and one with the root of the first."""
    roots = {"a": "a", "b": "b", "twin": "a", "c": "c"}
    hosts = {name: LocalHostConfig(root=str(tmp_path / root)) for name, root in roots.items()}
    return Fleet(hosts, {"pair": HostsTarget(["a", "b"]), "all": HostsTarget(["a", "b", "twin"])})


@pytest.fixture
def runs(fleet: Fleet) -> dict[str, RunDirectory]:
    """Create a copy of the run on a and on b, at ownership 1."""
    made = {name: RunDirectory(Path(fleet.hosts[name].root), "r") for name in "ab"}
    for each in made.values():
        each.fence(1, "pair")
        each.attempt(1)
    return made


def group_of(fleet: Fleet, hosts: HostPool, name: str = "pair") -> HostGroup:
    return HostGroup(hosts, fleet.target(name), "r")


def test_lock_seal_and_fence_are_written_on_every_host(
    fleet: Fleet, hosts: HostPool, runs: dict[str, RunDirectory]
) -> None:
    pair = group_of(fleet, hosts)
    pair.acquire("m", 2, "c", 60.0)
    assert {records.MigrationLock.read(run.paths.migration_lock).migration for run in runs.values()} == {"m"}
    pair.seal("m", 2, "c", 7)
    fences = [records.Fence.read(run.paths.fence) for run in runs.values()]
    assert fences[0] == fences[1]
    assert (fences[0].epoch, fences[0].owner, fences[0].sealed_step) == (2, "c", 7)
    back = fences[0].rolled_back("pair", 7)
    pair.put_fence(back, "m")
    pair.release("m", 2, "b")
    assert [records.Fence.read(run.paths.fence) for run in runs.values()] == [back, back]
    assert not any(records.MigrationLock.held_or_none(run.paths.migration_lock) for run in runs.values())


def test_acquire_fails_if_one_host_is_locked(fleet: Fleet, hosts: HostPool, runs: dict[str, RunDirectory]) -> None:
    HostGroup(hosts, Target("b", ("b",)), "r").acquire("other", 2, "elsewhere", 60.0)
    with pytest.raises(RemoteError, match="run r is locked for elsewhere by migration other"):
        group_of(fleet, hosts).acquire("m", 2, "c", 60.0)
    assert not os.path.exists(runs["a"].paths.migration_lock), "the first host is locked last"


def test_hosts_sharing_a_root_count_once(fleet: Fleet, hosts: HostPool) -> None:
    assert [host.name for host in group_of(fleet, hosts, "all").run_hosts] == ["a", "b"]
    assert not list(Path(fleet.hosts["a"].root).glob(".tokens/*"))


def test_run_is_running_while_any_host_has_a_process(
    fleet: Fleet, hosts: HostPool, runs: dict[str, RunDirectory]
) -> None:
    pair, b = group_of(fleet, hosts), hosts.get("b")
    assert not pair.describe().running
    Path(runs["b"].paths.config).write_text("a: 1\n")
    command = records.Command(records.RESTORE, epoch=1, migration="m").to_json()
    started = b.call(attempts.start)(b.root, "r", 1, SLEEPER, {}, process=1, group=["a", "b"], command=command)
    try:
        assert pair.describe().running
        assert pair.running_attempt() == 1
        found = pair.attempt_of_migration("m")
        assert found is not None
        assert (found.attempt, found.running) == (1, True)
    finally:
        os.kill(started.pid, signal.SIGKILL)
    pair.wait_exited(1)
    assert pair.running_attempt() == 0


def test_hosts_of_run_come_from_launch_records(fleet: Fleet, hosts: HostPool, runs: dict[str, RunDirectory]) -> None:
    a = hosts.get("a")
    runs["a"].status(1, records.TRAINING, 3)
    status = records.Status.read(runs["a"].attempt(1).status())
    dataclasses.replace(status, processes=2).write(runs["a"].attempt(1).status())
    (run,) = (each for each in take_snapshot(hosts, 60, only={"a"}).runs if each.run_id == "r")
    target = Target("c", ("c",))
    with pytest.raises(MidstreamError, match="run r has 2 processes, and a reports 1: midstream did not start it"):
        hosts_of_run(fleet, a, dataclasses.replace(run, running=True), target)

    identity = records.this_process().to_json()
    launched = runs["a"].attempt(1).launched()
    records.write_json(launched, {**identity, "group": ["a", "b"]})
    assert hosts_of_run(fleet, a, run, target) == ("a", "b")
    with pytest.raises(UsageError, match="b is one of the hosts of run r, and of target x"):
        hosts_of_run(fleet, a, run, Target("x", ("c", "b")))
    records.write_json(launched, {**identity, "group": ["a", "removed"]})
    with pytest.raises(UsageError, match="run r runs on a, removed, and the fleet has no host removed"):
        hosts_of_run(fleet, a, run, target)


def test_target_of_uses_the_planned_hosts(fleet: Fleet) -> None:
    assert target_of(fleet, "pair", ("a", "b")) == fleet.target("pair")
    assert target_of(fleet, "pair", ("a", "c")) == Target("pair", ("a", "c")), "the fleet file was changed"
    assert target_of(fleet, "unlisted", ("a",)) == Target("unlisted", ("a",))


def test_end_of_a_replica_names_the_process_that_failed(
    fleet: Fleet, hosts: HostPool, runs: dict[str, RunDirectory]
) -> None:
    """Process 0, whose rows are read, ends because another one was killed."""
    ended = dataclasses.replace(records.this_process(), start_ticks=1)
    for process, (name, run) in enumerate(runs.items()):
        files = run.attempt(1)
        run.status(1, records.REPLAYING, 5, ended)
        status = dataclasses.replace(records.Status.read(files.status()), process=process, processes=2, host=name)
        os.unlink(files.status())
        status.write(files.status(process))
        records.write_json(files.launched(process), {**ended.to_json(), "group": ["a", "b"]})
        signalled = "SIGKILL" if process else ""
        code = None if process else 1
        records.ProcessExit(process, code, status.heartbeat + 2 - process, signalled).write(files.exit(process))
    with pytest.raises(ReplicaUnfitError, match=r"attempt 1 on pair has ended \(process 1 on b failed: "):
        AttemptRows(group_of(fleet, hosts), 1, "replay.jsonl").more(0)
