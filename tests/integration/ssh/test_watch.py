"""Watching hosts over real SSH with cut connections and stopped servers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midstream.fleet.fleet import Fleet, HostConfig
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.watch.host_feed import HostFeed
from midstream.watch.snapshot import DOWN, LIVE, STALE, HostView, Snapshot
from midstream.watch.watcher import Watcher, take_snapshot
from midstream_core import records
from midstream_host.machine import inventory
from simulators.sshd import Lab, SshServer, environment
from support import recorded_outputs as recorded
from support.run_directory import RunDirectory

PATIENCE = 60.0


@pytest.fixture
def run(server: SshServer) -> RunDirectory:
    made = RunDirectory(server.root)
    made.fence(1)
    made.status(1, records.TRAINING, 3)
    made.rows(1, 0, 1, 2)
    return made


@pytest.fixture
def watch(server: SshServer) -> Iterator[Watcher]:
    fleet = Fleet(hosts={server.name: server.config})
    hosts = HostPool(fleet)
    made = Watcher(fleet, hosts, interval=0.05)
    made.start()
    yield made
    made.stop()
    hosts.close()


def wait_until(watch: Watcher, holds: Callable[[HostView], bool], rows: int = 0) -> Snapshot:
    """Return the first snapshot with ``holds(host)`` and ``rows`` rows of the run."""
    found = watch.wait_for(
        lambda now: holds(now.hosts[0]) and (not rows or (bool(now.runs) and len(now.runs[0].curve) >= rows)), PATIENCE
    )
    assert found is not None, f"not reached; last snapshot: {watch.snapshot()}"
    return found


def live(host: HostView) -> bool:
    return host.link == LIVE


def steps(snapshot: Snapshot) -> list[int]:
    return [row["global_step"] for row in snapshot.runs[0].curve]


def test_watch_over_ssh_follows_metrics(run: RunDirectory, watch: Watcher) -> None:
    first = wait_until(watch, live, rows=3)
    assert first.hosts[0].kind == "ssh"
    assert first.runs[0].running
    assert first.hosts[0].machine is not None
    assert [device.kind for device in first.hosts[0].machine.accelerators] == ["cpu", "cpu"]
    run.rows(1, 3)
    run.text(1, '{"global_step": 4, "train/')
    assert steps(wait_until(watch, live, rows=4)) == [0, 1, 2, 3]
    run.text(1, 'loss": 0.1}\n')
    assert steps(wait_until(watch, live, rows=5)) == [0, 1, 2, 3, 4]


@pytest.mark.usefixtures("run")
def test_watch_measures_clock_skew(watch: Watcher) -> None:
    snapshot = wait_until(watch, lambda host: host.machine is not None and host.machine.clock_skew != 0.0)
    assert snapshot.hosts[0].machine is not None
    assert abs(snapshot.hosts[0].machine.clock_skew) < 1.0  # it is this machine's clock


def test_cut_connection_is_stale_then_live(server: SshServer, run: RunDirectory, watch: Watcher) -> None:
    wait_until(watch, live, rows=3)
    states: list[tuple[str, int]] = []
    watch.subscribe(lambda now: states.append((now.hosts[0].link, len(now.runs))))
    server.drop_connections()
    run.rows(1, 3)
    assert steps(wait_until(watch, live, rows=4)) == [0, 1, 2, 3]
    assert STALE in [link for link, _ in states]
    assert {count for _, count in states} == {1}, "the last known run stays listed"


@pytest.mark.usefixtures("run")
def test_stopped_server_is_down_until_restart(server: SshServer, watch: Watcher) -> None:
    wait_until(watch, live, rows=3)
    server.stop()
    down = wait_until(watch, lambda host: host.link == DOWN)
    assert "cannot be reached: Connection refused" in down.hosts[0].error
    assert down.hosts[0].last_seen is not None
    assert steps(down) == [0, 1, 2]
    server.start()
    assert wait_until(watch, live).hosts[0].error == ""


def test_link_without_answers_is_stale_until_it_answers(server: SshServer, run: RunDirectory, watch: Watcher) -> None:
    wait_until(watch, live, rows=3)
    sessions = server.sessions()
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        stale = wait_until(watch, lambda host: host.link == STALE)
        assert "no news since" in stale.hosts[0].error
    finally:
        for pid in sessions:
            os.kill(pid, signal.SIGCONT)
    run.rows(1, 3)
    assert steps(wait_until(watch, live, rows=4)) == [0, 1, 2, 3]


def test_unknown_host_key_is_shown_with_hint(server: SshServer) -> None:
    server.known_hosts.write_text("")
    fleet = Fleet(hosts={server.name: server.config})
    [host] = take_snapshot(HostPool(fleet), timeout=PATIENCE).hosts
    assert host.link == DOWN
    assert "SHA256:" in host.error
    assert f"ssh-keyscan -p {server.port} 127.0.0.1 >> {server.known_hosts}" in host.error


def test_snapshot_covers_several_hosts(lab: Lab) -> None:
    servers = [lab.host(name, devices=1) for name in ("gpu1", "gpu2")]
    for number, server in enumerate(servers):
        RunDirectory(server.root, f"run-{number}").rows(1, *range(number + 1))
    fleet = Fleet(hosts={**{server.name: server.config for server in servers}, "here": lab.local("here")})
    hosts = HostPool(fleet)
    snapshot = take_snapshot(hosts, timeout=PATIENCE)
    hosts.close()
    assert [(host.name, host.link) for host in snapshot.hosts] == [("gpu1", LIVE), ("gpu2", LIVE), ("here", LIVE)]
    assert [(run.host, run.run_id, len(run.curve)) for run in snapshot.runs] == [
        ("gpu1", "run-0", 1),
        ("gpu2", "run-1", 2),
    ]


def test_host_without_python_is_watched_by_shell(lab: Lab, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "sed", "awk", "date", "df", "uname", "getconf", "sleep", "ls", "sort", "tr", "ps"):
        (tools / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    server = lab.host("old", python=None, sshd=environment(PATH=tools))
    fleet = Fleet(hosts={"old": server.config})
    hosts = HostPool(fleet)
    watch = Watcher(fleet, hosts, interval=0.05)
    watch.start()
    try:
        snapshot = wait_until(
            watch, lambda host: live(host) and host.machine is not None and host.machine.clock_skew != 0.0
        )
        machine = snapshot.hosts[0].machine
        assert machine is not None
        assert (machine.python, machine.hostname, machine.cpus) == ("", os.uname().nodename, os.cpu_count())
        assert machine.memory_total > machine.memory_used > 0
        assert machine.disks
        assert abs(machine.clock_skew) < 5.0
        server.drop_connections()
        assert wait_until(watch, lambda host: host.link == STALE)
        assert wait_until(watch, live)
    finally:
        watch.stop()
        hosts.close()


@pytest.mark.usefixtures("run")
def test_watch_includes_inventory(watch: Watcher) -> None:
    snapshot = wait_until(watch, lambda host: host.machine is not None and host.machine.kernel != "")
    machine = snapshot.hosts[0].machine
    assert machine is not None
    assert machine.kernel == os.uname().release
    assert machine.disks
    assert machine.glibc == inventory.collect()["glibc"]


def test_watch_continues_after_interval_change(run: RunDirectory, watch: Watcher) -> None:
    wait_until(watch, live, rows=3)
    for feed in watch._feeds:
        feed.set_interval(0.2)
        feed.set_interval(0.1)
    run.rows(1, 3)
    assert steps(wait_until(watch, live, rows=4)) == [0, 1, 2, 3]


def test_interval_that_changes_while_a_probe_starts(
    server: SshServer, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = HostFeed._start

    def start_slowly(feed: HostFeed, host: Host, config: HostConfig) -> Any:
        started = start(feed, host, config)
        feed.set_interval(0.1)
        return started

    monkeypatch.setattr(HostFeed, "_start", start_slowly)
    fleet = Fleet(hosts={"gpu1": server.config})
    hosts = HostPool(fleet)
    watch = Watcher(fleet, hosts, interval=3600.0)
    watch.start()
    try:
        wait_until(watch, live, rows=3)
        run.rows(1, 3)
        wait_until(watch, live, rows=4)
    finally:
        watch.stop()
        hosts.close()


def test_status_shows_hardware_and_its_users(lab: Lab, tmp_path: Path) -> None:
    values = dict(zip(recorded.FIELDS, recorded.GPUS["H100"][0].splitlines()[0].split(", "), strict=True))
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncase $1 in\n--query-gpu=*) echo '{', '.join(values.values())}' ;;\n"
        f"--query-compute-apps=*) echo '{values['uuid']}, {os.getpid()}, python' ;;\n"
        "*) echo '| Driver Version: 550.54.15   CUDA Version: 12.4 |' ;;\nesac\n"
    )
    program.chmod(0o755)
    server = lab.host("gpu1", sshd=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"))
    argv = [sys.executable, "-m", "midstream", "--fleet", str(lab.fleet_file(gpu1=server.config)), "--status"]
    status = subprocess.run([*argv, "--json"], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    [host] = [event for event in map(json.loads, status.stdout.splitlines()) if event["event"] == "host"]
    machine = host["machine"]
    assert (machine["driver"], machine["cuda"], machine["kernel"]) == ("550.54.15", "12.4", os.uname().release)
    assert [user["pid"] for user in machine["users"]] == [os.getpid()]
    assert machine["users"][0]["user"]
    [gpu] = machine["accelerators"]
    assert (gpu["kind"], gpu["capability"], gpu["power"]) == ("NVIDIA H100 80GB HBM3", "9.0", 612.37)
    assert machine["disks"]
    shown = subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    [line] = [line for line in shown.splitlines() if line.startswith("gpu1")]
    assert "1xNVIDIA H100 80GB HBM3" in line
    assert "driver 550.54.15, CUDA 12.4, used by " in line
