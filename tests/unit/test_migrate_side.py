"""Several hosts as one side of a move: what is written everywhere, and who is asked."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.errors import MidstreamError, RemoteError, UsageError
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHost, Target
from midstream.hosts.host_pool import Hosts
from midstream.migrate.host_group import HostGroup, hosts_of_run, target_of
from midstream.watch.watcher import look_once
from midstream_engine import records
from support.run_directory import RunDirectory

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    """Two hosts with roots of their own, and one that has the first one's."""
    roots = {"a": "a", "b": "b", "twin": "a", "c": "c"}
    hosts = {name: LocalHost(root=str(tmp_path / root)) for name, root in roots.items()}
    return Fleet(hosts, {"pair": HostsTarget(["a", "b"]), "all": HostsTarget(["a", "b", "twin"])})


@pytest.fixture
def hosts(fleet: Fleet) -> Iterator[Hosts]:
    opened = Hosts(fleet)
    yield opened
    opened.close()


@pytest.fixture
def runs(fleet: Fleet) -> dict[str, RunDirectory]:
    """A copy of the run on a and on b, at epoch 1."""
    made = {name: RunDirectory(Path(fleet.hosts[name].root), "r") for name in "ab"}
    for each in made.values():
        each.fence(1, "pair")
        each.attempt(1)
    return made


def side(fleet: Fleet, hosts: Hosts, name: str = "pair") -> HostGroup:
    return HostGroup(hosts, fleet.target(name), "r")


def test_what_a_move_decides_lies_on_every_host(fleet: Fleet, hosts: Hosts, runs: dict[str, RunDirectory]) -> None:
    pair = side(fleet, hosts)
    pair.acquire("m", 2, "c", 60.0)
    assert {records.MigrationLock.read(run.paths.migration_lock).migration for run in runs.values()} == {"m"}
    pair.seal("m", 2, "c", 7)
    fences = [records.Fence.read(run.paths.fence) for run in runs.values()]
    assert fences[0] == fences[1]
    assert (fences[0].epoch, fences[0].owner, fences[0].sealed_step) == (2, "c", 7)
    back = fences[0].rolled_back("pair", 7)
    pair.put_fence(back.to_json(), "m")
    pair.release("m")
    assert [records.Fence.read(run.paths.fence) for run in runs.values()] == [back, back]
    assert not any(os.path.exists(run.paths.migration_lock) for run in runs.values())


def test_a_run_of_which_another_migration_holds_one_host_is_not_taken(
    fleet: Fleet, hosts: Hosts, runs: dict[str, RunDirectory]
) -> None:
    HostGroup(hosts, Target("b", ("b",)), "r").acquire("other", 2, "elsewhere", 60.0)
    with pytest.raises(RemoteError, match="moved to elsewhere by migration other"):
        side(fleet, hosts).acquire("m", 2, "c", 60.0)
    assert not os.path.exists(runs["a"].paths.migration_lock), "the first host is the last to be taken"


def test_hosts_that_share_a_root_are_one_home(fleet: Fleet, hosts: Hosts) -> None:
    assert [host.name for host in side(fleet, hosts, "all").run_hosts] == ["a", "b"]
    assert not list(Path(fleet.hosts["a"].root).glob(".tokens/*"))


def test_a_run_lives_while_a_process_of_it_lives_on_any_host(
    fleet: Fleet, hosts: Hosts, runs: dict[str, RunDirectory]
) -> None:
    pair, b = side(fleet, hosts), hosts.get("b")
    assert not pair.describe()["running"]
    Path(runs["b"].paths.config).write_text("a: 1\n")
    words = {"root": b.root, "run_id": "r", "number": 1, "argv": SLEEPER, "env": {}}
    order = records.Command(records.RESTORE, epoch=1, migration="m").to_json()
    started = b.call("runs.attempts.start", process=1, group=["a", "b"], order=order, **words)
    try:
        assert pair.describe()["running"]
        assert pair.running_attempt() == 1
        found = pair.attempt_of_migration("m")
        assert found is not None
        assert (found["attempt"], found["running"]) == (1, True)
    finally:
        os.kill(started["pid"], signal.SIGKILL)
    pair.wait_exited(1)
    assert pair.running_attempt() == 0


def test_the_hosts_of_a_run_are_those_it_was_started_on(
    fleet: Fleet, hosts: Hosts, runs: dict[str, RunDirectory]
) -> None:
    a = hosts.get("a")
    runs["a"].status(1, records.TRAINING, 3)
    status = records.Status.read(runs["a"].attempt(1).status())
    dataclasses.replace(status, processes=2).write(runs["a"].attempt(1).status())
    (run,) = (each for each in look_once(fleet, hosts, 60, only={"a"}).runs if each.run_id == "r")
    target = Target("c", ("c",))
    with pytest.raises(MidstreamError, match="run r has 2 processes, and a knows of 1: midstream did not start it"):
        hosts_of_run(fleet, a, dataclasses.replace(run, running=True), target)

    identity = records.this_process().to_json()
    launched = runs["a"].attempt(1).launched()
    records.write_json(launched, {**identity, "group": ["a", "b"]})
    assert hosts_of_run(fleet, a, run, target) == ("a", "b")
    with pytest.raises(UsageError, match="b is one of the hosts of run r, and of target x"):
        hosts_of_run(fleet, a, run, Target("x", ("c", "b")))
    records.write_json(launched, {**identity, "group": ["a", "gone"]})
    with pytest.raises(UsageError, match="run r runs on a, gone, and the fleet has no host gone"):
        hosts_of_run(fleet, a, run, target)


def test_a_target_is_the_fleets_where_it_has_the_hosts_of_the_plan(fleet: Fleet) -> None:
    assert target_of(fleet, "pair", ("a", "b")) == fleet.target("pair")
    assert target_of(fleet, "pair", ("a", "c")) == Target("pair", ("a", "c")), "the file was changed since"
    assert target_of(fleet, "nobody", ("a",)) == Target("nobody", ("a",))
