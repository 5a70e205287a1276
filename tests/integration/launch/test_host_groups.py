"""Several hosts as one target: start, watch, stop, first failure."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, HostsTarget
from midstream.fleet.fleet_file import load_fleet, parse_fleet
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.install.errors import LaunchError
from midstream.launch import host_group_start
from midstream.launch.attempt_monitor import look_at_ranks, stop_ranks, verdict, wait_ranks
from midstream.launch.host_links import all_links, hosts_apart, meet
from midstream.launch.start_attempt import Attempt, Launch, Rank
from midstream.tui.actions import Actions
from midstream.watch.watcher import take_snapshot
from midstream_core import records
from simulators.sshd import Lab
from support.command_line import midstream
from support.engines.stand_in_engine import write_stand_in
from support.launched_processes import kill_launched

TRAINING = frozenset({records.TRAINING})
PATIENCE = 120.0  # seconds: what another process has to do takes its time on a slow machine
pytestmark = [pytest.mark.drawn, pytest.mark.system]


@pytest.fixture
def pair(lab: Lab) -> Iterator[Fleet]:
    """Create two hosts with roots of their own; kill their processes after the test."""
    servers = [lab.host("a", devices=2), lab.host("b", devices=2)]
    file = lab.fleet_file(a=servers[0].config, b=servers[1].config)
    with file.open("a") as text:
        text.write("targets: {pair: {type: hosts, hosts: [a, b]}}\n")
    yield load_fleet(file)
    kill_launched(lab.directory)


@pytest.fixture
def hosts(pair: Fleet) -> Iterator[HostPool]:
    opened = HostPool(pair)
    yield opened
    opened.close()


@pytest.fixture
def start(pair: Fleet, hosts: HostPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attempt]:
    """Return a function that starts the stand-in engine on the pair."""
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    ready = Environment(sys.executable, "the tests' own")
    monkeypatch.setattr(host_group_start, "prepare_environment", lambda *_: ready)

    def start(*overrides: str, fleet: Fleet = pair, **more: Any) -> Attempt:
        launch = replace(Launch("run", "pair", config_text="a: 1\n", overrides=overrides), **more)
        if fleet is pair:
            return host_group_start.start(hosts, fleet.target("pair"), launch)
        with closing(HostPool(fleet)) as others:  # what a start reads of its hosts is in their pool's fleet
            return host_group_start.start(others, fleet.target("pair"), launch)

    return start


def environment_of(fleet: Fleet, host: str, process: int, attempt: int = 1) -> dict[str, Any]:
    """Return the flags and the environment that a process logged."""
    files = records.RunPaths(fleet.hosts[host].root, "run").attempt(attempt)
    return json.loads(Path(files.log(process)).read_text().splitlines()[0])


def test_group_starts_connects_and_stops_all_processes(
    pair: Fleet, hosts: HostPool, start: Callable[..., Attempt]
) -> None:
    Path(pair.hosts["b"].root, "runs/run/attempts/004").mkdir(parents=True)  # claimed there by an earlier attempt
    attempt = start()
    assert attempt.number == 5, "one number on all hosts"
    assert [(rank.process, rank.host) for rank in attempt.ranks] == [(0, "a"), (1, "b")]
    ranks = wait_ranks(hosts, attempt.ranks, "run", 5, TRAINING, PATIENCE)
    assert [rank.state for rank in ranks] == ["training", "training"]
    found = [environment_of(pair, name, process, 5) for process, name in enumerate("ab")]
    names = ("coordinator_address", "num_processes", "process_id")
    flags = [[each["flags"][f"--trainer.distributed.{name}"] for name in names] for each in found]
    coordinator = flags[0][0]
    assert flags == [[coordinator, "2", "0"], [coordinator, "2", "1"]]
    assert not coordinator.startswith("localhost")
    assert found[1]["env"]["no_grpc_proxy"] == coordinator.rpartition(":")[0]
    assert found[1]["env"]["MIDSTREAM_HOST"] == "b"
    assert os.listdir(pair.hosts["a"].root + "/runs/run/attempts") == ["005"], "the unused claim is removed"

    snapshot, said = take_snapshot(hosts, timeout=60), list[str]()
    words = Actions(pair, hosts).stop_run(snapshot, snapshot.copies("run")[0], said.append)  # as the terminal UI
    assert words.startswith("run stopped at step ")
    assert said[0] == "stopping run on a, b: saving first"
    ended = look_at_ranks(hosts, attempt.ranks, "run", 5)
    assert [(rank.state, rank.running, rank.supervised) for rank in ended] == [("stopped", False, False)] * 2
    assert start().number == 6


def test_status_and_stop_treat_group_as_one_run(pair: Fleet, hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, PATIENCE)
    rows = [line.split() for line in midstream("--fleet", pair.path, "--status").stdout.splitlines()]
    assert [row[:3] for row in rows if row[:1] == ["run"]] == [["run", "a+b", "training"]]
    stopped = midstream("--fleet", pair.path, "--stop", "run", "--json")
    assert (stopped.code, stopped.result["run"]) == (0, "run"), stopped.stderr
    assert "stopping run on a, b" in stopped.stderr
    after = look_at_ranks(hosts, attempt.ranks, "run", 1)
    assert [rank.state for rank in after] == ["stopped", "stopped"]
    assert not any(rank.running or rank.supervised for rank in after)


def test_killed_process_ends_group_and_is_named(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start()
    ranks = wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, PATIENCE)
    status = ranks[1].status
    assert status is not None
    os.kill(status.pid, signal.SIGKILL)
    expected = r"attempt 1 of run: process 1 on b failed: killed with SIGKILL, .*; the others were killed"
    with pytest.raises(LaunchError, match=expected):
        wait_ranks(hosts, attempt.ranks, "run", 1, {records.FINISHED}, PATIENCE)
    after = look_at_ranks(hosts, attempt.ranks, "run", 1)
    assert not any(rank.running or rank.supervised for rank in after)
    assert verdict(after).startswith("process 1 on b failed"), "the same later: the first to end is the cause"


def test_stalled_process_is_named_among_waiting_ones(
    pair: Fleet, hosts: HostPool, start: Callable[..., Attempt]
) -> None:
    watched = Fleet({name: replace(each, stall_timeout=5.0) for name, each in pair.hosts.items()}, pair.targets)
    attempt = start(fleet=watched)
    wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, PATIENCE)
    first, second = (records.RunPaths(pair.hosts[name].root, "run").attempt(1) for name in "ab")
    Path(second.dir, "stand").touch()
    stalled_at, deadline = records.Status.read(second.status(1)).step, time.monotonic() + PATIENCE
    while records.Status.read(first.status(0)).step < stalled_at + 5:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    Path(first.dir, "stand").touch()
    with pytest.raises(LaunchError, match=r"process 1 on b (failed: no progress for|is stalled at step)"):
        wait_ranks(hosts, attempt.ranks, "run", 1, {records.FINISHED}, PATIENCE)


def test_failed_start_of_process_leaves_none_running(
    hosts: HostPool, start: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = {"a": sys.executable, "b": "/no/such/python"}
    monkeypatch.setattr(host_group_start, "prepare_environment", lambda host, *_: Environment(ready[host.name], ""))
    with pytest.raises(Exception, match="b: /no/such/python cannot be started"):
        start()
    assert not any(rank.running or rank.supervised for rank in look_at_ranks(hosts, [Rank(0, "a")], "run", 1))


def test_interrupted_start_leaves_none_running(
    hosts: HostPool, start: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after process 0 was started."""
    real = host_group_start.start_process

    def start_process(host: Host, *rest: Any) -> Attempt:
        if host.name == "b":
            raise KeyboardInterrupt
        return real(host, *rest)

    monkeypatch.setattr(host_group_start, "start_process", start_process)
    with pytest.raises(KeyboardInterrupt):
        start()
    [rank] = look_at_ranks(hosts, [Rank(0, "a")], "run", 1)
    assert (rank.running, rank.supervised) == (False, False)


def test_missing_secret_of_a_process_leaves_none_running(
    pair: Fleet, hosts: HostPool, start: Callable[..., Attempt]
) -> None:
    """It was there when the launch was checked."""
    b = replace(pair.hosts["b"], secrets={"WANDB_API_KEY": "env:MIDSTREAM_TEST_MISSING"})
    with pytest.raises(UsageError, match="MIDSTREAM_TEST_MISSING is not set"):
        start(fleet=replace(pair, hosts={**pair.hosts, "b": b}))
    ranks = look_at_ranks(hosts, (Rank(0, "a"),), "run", 1)
    assert [(rank.running, rank.supervised) for rank in ranks] == [(False, False)]


def test_shared_root_is_detected(hosts: HostPool) -> None:
    members = [hosts.get("a"), hosts.get("b")]
    assert hosts_apart(members) == ["b"]
    text = "hosts: {a: {type: local}, b: {type: local}}\ntargets: {t: {type: hosts, hosts: [a, b], shared_root: /nfs}}"
    assert {config.root for config in parse_fleet(text).hosts.values()} == {"/nfs"}


@pytest.mark.usefixtures("start")
def test_hosts_of_shared_root_share_attempt(lab: Lab, pair: Fleet) -> None:
    root = str(lab.directory / "nfs")
    target = HostsTarget(["a", "b"], shared_root=root)
    shared = Fleet({name: replace(each, root=root) for name, each in pair.hosts.items()}, {"pair": target})
    with_root = HostPool(shared)
    try:
        assert hosts_apart([with_root.get("a"), with_root.get("b")]) == []
        assert not os.path.exists(root + "/.tokens"), "the test of the root leaves nothing"
        attempt = host_group_start.start(with_root, shared.target("pair"), Launch("run", "pair", config_text=""))
        ranks = wait_ranks(with_root, attempt.ranks, "run", attempt.number, TRAINING, PATIENCE)
        assert sorted(os.listdir(root + "/runs/run/attempts")) == ["001"]
        assert [rank.process for rank in ranks] == [0, 1]
        stop_ranks(with_root, attempt.ranks, "run", 1, PATIENCE)
    finally:
        with_root.close()


def test_declared_shared_root_that_is_not_shared_is_refused(pair: Fleet, start: Callable[..., Attempt]) -> None:
    wrong = Fleet(pair.hosts, {"pair": HostsTarget(["a", "b"], shared_root="/nfs")})
    with pytest.raises(LaunchError, match=r"b does not share a:.*, which shared_root of pair says"):
        start(fleet=wrong)
    assert not os.path.exists(pair.hosts["a"].root + "/runs")


def test_links_between_hosts_are_tested_on_free_port(hosts: HostPool) -> None:
    members = [hosts.get("a"), hosts.get("b")]
    links = all_links(members, {})
    assert [(link.source, link.target, link.open) for link in links] == [("b", "a", True), ("a", "b", True)]
    coordinator = meet(members[0], members[1:], "127.0.0.1", (29400, 29999))
    assert coordinator.startswith("127.0.0.1:29")
    with pytest.raises(LaunchError, match=r"b does not reach a on port \d+ \(192\.0\.2\.77: "):
        meet(members[0], members[1:], "192.0.2.77")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{type: hosts, hosts: [here, here]}", "names host here twice"),
        ("{type: hosts, hosts: [here], ports: [5, 3]}", r"ports is \[5, 3\]"),
        ("{type: hosts, hosts: [own], shared_root: /nfs}", "shared_root is /nfs, and own has /own"),
        ("{type: slurm}", "names no host"),
        ("{type: slurm, host: nowhere}", "names host 'nowhere'"),
    ],
)
def test_invalid_group_target_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        parse_fleet(
            f"hosts: {{here: {{type: local}}, own: {{type: local, root: /own}}}}\ntargets: {{t: {text}}}\n", "f"
        )
