"""SLURM as a target, against stand-ins for its commands; not tested on a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.check.target_checks import check_target
from midstream.fleet.fleet import Fleet, SlurmTarget
from midstream.hosts.host_pool import HostPool
from midstream.launch import host_group_start
from midstream.launch.attempt_monitor import look_at_ranks, stop_run, wait_ranks
from midstream.launch.errors import LaunchError
from midstream.launch.install.bundle import build_bundle, install_engine
from midstream.launch.install.environment import Environment
from midstream.launch.start_attempt import Attempt, Launch
from midstream.remote.runs import run_state
from midstream_engine import records
from simulators.slurm import write_slurm
from simulators.sshd import Lab, SshServer, environment
from support.engines.stand_in_engine import write_stand_in

pytestmark = pytest.mark.system
TRAINING = frozenset({records.TRAINING})


@pytest.fixture
def login(lab: Lab) -> Iterator[SshServer]:
    """Create a login node whose PATH has the stand-ins; end their jobs after the test."""
    server = lab.host("login", devices=1)
    tools = write_slurm(server.directory / "slurm")
    server.stop()
    config = server.directory / "sshd_config"
    config.write_text(environment(PATH=f"{tools}:{os.environ['PATH']}") + config.read_text())
    server.start()
    yield server
    for job in (tools / "state").glob("*.json"):
        try:
            os.killpg(json.loads(job.read_text())["pid"], signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture
def fleet(login: SshServer) -> Fleet:
    return Fleet(
        {"login": login.config},
        {"cluster": SlurmTarget("login", ["--nodes=2"]), "none": SlurmTarget("login", ["--partition=none"])},
    )


@pytest.fixture
def hosts(fleet: Fleet) -> Iterator[HostPool]:
    opened = HostPool(fleet)
    if opened.get("login").run(["sbatch", "--version"]).returncode:
        pytest.skip("the login shell sets a PATH of its own")
    yield opened
    opened.close()


@pytest.fixture
def start(fleet: Fleet, hosts: HostPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Attempt]:
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    ready = Environment(sys.executable, "the tests' own")
    monkeypatch.setattr(host_group_start, "prepare_environment", lambda *_: ready)

    def start(*overrides: str, target: str = "cluster", **more: Any) -> Attempt:
        launch = Launch("run", target, config_text="a: 1\n", overrides=overrides)
        return host_group_start.start(hosts, fleet, fleet.target(target), replace(launch, **more))

    return start


def test_slurm_job_is_queued_runs_and_is_stopped(
    login: SshServer, hosts: HostPool, start: Callable[..., Attempt]
) -> None:
    hold = login.directory / "slurm" / "state" / "hold"
    hold.touch()
    attempt = start("--note", "it's $HOME")
    host = hosts.get("login")
    described = host.call(run_state.describe)(root=host.root, run_id="run")
    assert (described.running, described.status) == (True, None), "a queued job counts as running, without a status"
    with pytest.raises(Exception, match="attempt 1 of run runs here already"):
        start()
    hold.unlink()
    deadline = time.monotonic() + 60
    while len(ranks := wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, 60)) < 2:
        assert time.monotonic() < deadline
    assert [(rank.process, rank.state) for rank in ranks] == [(0, "training"), (1, "training")]
    files = records.RunPaths(host.root, "run").attempt(1)
    flags = [json.loads(Path(files.log(process)).read_text().splitlines()[0])["flags"] for process in (0, 1)]
    assert [each["--trainer.distributed.process_id"] for each in flags] == ["0", "1"]
    assert flags[0]["--trainer.distributed.num_processes"] == "2"
    assert flags[0]["--trainer.distributed.coordinator_address"].startswith("127.0.0.1:")
    assert flags[0]["--note"] == "it's $HOME", "no shell expands it"
    assert stop_run(hosts, "login", "run", 1, 60).state == records.STOPPED


def test_failed_process_ends_slurm_job_and_is_named(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start("--fail", "early", "--fail-process", "1")
    with pytest.raises(LaunchError, match="attempt 1 of run: process 1 on login failed: exit code 1: RuntimeError"):
        wait_ranks(hosts, attempt.ranks, "run", 1, {records.FINISHED}, 60)
    host = hosts.get("login")
    assert not any(rank.running for rank in look_at_ranks(hosts, attempt.ranks, "run", 1))
    assert not host.call(run_state.running_attempt)(root=host.root, run_id="run")


def test_sbatch_error_is_reported_and_leaves_no_attempt(login: SshServer, start: Callable[..., Attempt]) -> None:
    expected = r"login: sbatch: sbatch: error: invalid partition specified: none .*correct sbatch: of target none"
    with pytest.raises(LaunchError, match=expected):
        start(target="none")
    assert os.listdir(login.root / "runs/run/attempts") == []


def test_check_looks_for_slurm_commands(fleet: Fleet, hosts: HostPool) -> None:
    checks = {check.name: check for check in check_target(fleet, hosts, fleet.target("cluster"))}
    assert checks["sbatch"].detail == "slurm stand-in 1"
