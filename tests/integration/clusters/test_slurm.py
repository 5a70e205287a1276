"""Jobs of a real Slurm cluster on this machine: its queue, limits, preemption and GPUs, with the stand-in engine."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.check.check_result import FAIL, PASS, Check
from midstream.check.slurm_checks import check_allocation
from midstream.check.target_checks import check_target
from midstream.fleet.fleet import Fleet, SlurmTarget
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.install.errors import LaunchError, NotStartedError
from midstream.launch import host_group_start
from midstream.launch.attempt_monitor import kill_ranks, look_at_ranks, stop_run, wait_ranks
from midstream.launch.start_attempt import Attempt, Launch
from midstream_core import records
from midstream_host.runs import run_state, slurm
from simulators.clusters.slurm_cluster import SlurmCluster, login_node, slurm_cluster
from simulators.sshd import Lab, SshServer
from support.engines.stand_in_engine import write_stand_in

__all__ = ["slurm_cluster"]
pytestmark = [pytest.mark.drawn, pytest.mark.system]
TRAINING = frozenset({records.TRAINING})
TARGETS = {
    "pair": ["--nodes=2", "--gpus-per-node=h100:2"],
    "one": ["--nodes=1"],
    "bare": ["--nodes=1", "--export=NONE"],
    "complete": ["--nodes=3", "--exclusive"],
    "array": ["--nodes=1", "--array=0-1"],
    # SLURM signals 50 to 80 seconds before the limit: with --time=1 perhaps before the engine trains.
    "limited": ["--nodes=1", "--time=2", "--signal=TERM@50"],
    "none": ["--partition=none"],
    "large": ["--nodes=9"],
    "tasks": ["--nodes=2", "--ntasks=4", "--gpus=h100:4"],
    "spread": ["--gpus=h100:4"],
    "short": ["--nodes=1", "--time=00:05:00"],
    "mistyped": ["--nodess=2"],
}


@pytest.fixture
def login(lab: Lab, slurm_cluster: SlurmCluster) -> SshServer:
    return login_node(lab, slurm_cluster, "login", devices=1)


@pytest.fixture
def fleet(login: SshServer) -> Fleet:
    return Fleet({"login": login.config}, {name: SlurmTarget("login", flags) for name, flags in TARGETS.items()})


@pytest.fixture
def host(hosts: HostPool) -> Host:
    return hosts.get("login")


@pytest.fixture
def start(
    fleet: Fleet, hosts: HostPool, slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Attempt]]:
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    ready = Environment(sys.executable, "the tests' own")
    monkeypatch.setattr(host_group_start, "prepare_environment", lambda *_: ready)

    def start(*overrides: str, target: str = "one", **more: Any) -> Attempt:
        launch = Launch("run", target, config_text="a: 1\n", overrides=overrides)
        return host_group_start.start(hosts, fleet.target(target), replace(launch, **more))

    yield start
    slurm_cluster.cancel_all()


def job_of(host: Host, attempt: int = 1) -> slurm.JobState:
    found = host.call(slurm.job_of_attempt)(root=host.root, run_id="run", attempt=attempt)
    assert found is not None
    return found


def wait_status(host: Host, state: str, attempt: int = 1, seconds: float = 60.0) -> records.Status:
    end = time.monotonic() + seconds
    while True:
        found = host.call(run_state.status)(root=host.root, run_id="run", attempt=attempt)
        if found.status is not None and found.status.state == state:
            return found.status
        assert time.monotonic() < end, found
        time.sleep(0.05)


def test_job_on_two_nodes_has_its_gpus_and_is_stopped(
    hosts: HostPool, host: Host, start: Callable[..., Attempt], slurm_cluster: SlurmCluster
) -> None:
    attempt = start("--note", "it's $HOME", target="pair")
    end = time.monotonic() + 60
    while len(ranks := wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, 60)) < 2:
        assert time.monotonic() < end
    assert [(rank.process, rank.state) for rank in ranks] == [(0, "training"), (1, "training")]
    job = job_of(host)
    assert job.state == "RUNNING"
    assert ranks[0].job == f"job {job.job} (RUNNING)"
    shown = slurm_cluster.run("scontrol", "show", "job", job.job, "--details")
    assert "NumNodes=2" in shown
    assert "gres/gpu:h100=4" in shown or "gres:gpu:4" in shown or "GRES=gpu:h100:2" in shown, shown
    files = records.RunPaths(host.root, "run").attempt(1)
    logs = [json.loads(Path(files.log(process)).read_text().splitlines()[0]) for process in (0, 1)]
    flags = [log["flags"] for log in logs]
    assert [each["--trainer.distributed.process_id"] for each in flags] == ["0", "1"]
    assert [log["env"]["CUDA_VISIBLE_DEVICES"] for log in logs] == ["0,1", "0,1"], "SLURM's own allocation"
    coordinator = flags[0]["--trainer.distributed.coordinator_address"]
    assert coordinator.startswith("127.0.0.1:"), "n1 is no name that is resolved: SLURM's own address"
    assert flags[1]["--trainer.distributed.coordinator_address"] == coordinator
    assert flags[0]["--note"] == "it's $HOME", "no shell expands it"
    assert stop_run(hosts, "login", "run", 1, 60).state == records.STOPPED
    assert slurm_cluster.wait_state(job.job, "COMPLETED") == "COMPLETED"


def test_waiting_job_counts_as_running_and_is_cancelled_by_stop(
    host: Host, hosts: HostPool, start: Callable[..., Attempt], slurm_cluster: SlurmCluster
) -> None:
    blocker = slurm_cluster.submit("sleep 600", "--nodes=3", "--exclusive")
    slurm_cluster.wait_state(blocker, "RUNNING")
    attempt = start(target="complete")
    described = host.call(run_state.describe)(root=host.root, run_id="run")
    assert (described.running, described.status) == (True, None), "a queued job counts as running, without a status"
    assert job_of(host).waits
    with pytest.raises(Exception, match="attempt 1 of run runs here already"):
        start()
    with pytest.raises(NotStartedError, match="is cancelled: its engine had not started"):
        stop_run(hosts, "login", "run", 1, 60)
    assert slurm_cluster.wait_state(job_of(host).job, "CANCELLED") == "CANCELLED"
    assert host.call(run_state.running_attempt)(root=host.root, run_id="run") == 0
    assert not any(rank.running for rank in look_at_ranks(hosts, attempt.ranks, "run", 1))
    paths = records.RunPaths(host.root, "run").attempt(1)
    assert run_state.ended_without_status(paths, run_state.processes(paths)) or slurm.state("0").state == "UNKNOWN"


def test_failed_process_ends_job_and_is_named(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start("--fail", "early", "--fail-process", "1", target="pair")
    with pytest.raises(LaunchError, match="attempt 1 of run: process 1 on login failed: exit code 1: RuntimeError"):
        wait_ranks(hosts, attempt.ranks, "run", 1, {records.FINISHED}, 60)
    assert not any(rank.running for rank in look_at_ranks(hosts, attempt.ranks, "run", 1))


def test_killed_job_saves_nothing(hosts: HostPool, host: Host, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_status(host, records.TRAINING)
    kill_ranks(hosts, attempt.ranks, "run", 1, 60)
    found = host.call(run_state.status)(root=host.root, run_id="run", attempt=1)
    assert found.status is not None
    assert (found.running, found.status.state) == (False, records.TRAINING), "no SIGTERM came before SIGKILL"


def test_requeued_job_counts_as_running_until_it_trains_again(
    host: Host, start: Callable[..., Attempt], slurm_cluster: SlurmCluster
) -> None:
    start()
    first = wait_status(host, records.TRAINING)
    job = job_of(host).job
    slurm_cluster.run("scontrol", "requeue", job)
    slurm_cluster.wait_state(job, "PENDING")
    found = host.call(run_state.status)(root=host.root, run_id="run", attempt=1)
    assert found.running, "the job waits: a second engine must not start"
    with pytest.raises(Exception, match="attempt 1 of run runs here already"):
        start()
    slurm_cluster.run("scontrol", "release", job, check=False)
    slurm_cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    slurm_cluster.wait_state(job, "RUNNING")
    end = time.monotonic() + 60
    while wait_status(host, records.TRAINING).start_ticks == first.start_ticks:
        assert time.monotonic() < end
        time.sleep(0.05)
    assert host.call(run_state.running_attempt)(root=host.root, run_id="run") == 1


def test_preempted_job_saves_and_waits_again(
    host: Host, start: Callable[..., Attempt], slurm_cluster: SlurmCluster
) -> None:
    start(target="complete")
    wait_status(host, records.TRAINING)
    job = job_of(host).job
    urgent = slurm_cluster.submit("sleep 600", "--nodes=3", "--exclusive", "--partition=high")
    slurm_cluster.wait_state(job, "PENDING")
    slurm_cluster.wait_state(urgent, "RUNNING")
    status = wait_status(host, records.STOPPED)
    assert status.state == records.STOPPED, "preemption sends SIGTERM first"
    assert host.call(run_state.status)(root=host.root, run_id="run", attempt=1).running, "it waits in the queue"


@pytest.mark.slow
def test_job_is_signalled_before_its_time_limit(
    host: Host, start: Callable[..., Attempt], slurm_cluster: SlurmCluster
) -> None:
    start(target="limited")
    wait_status(host, records.TRAINING)
    job = job_of(host)
    assert 0 < job.ends - time.time() <= 120
    wait_status(host, records.STOPPED, seconds=120)
    assert slurm_cluster.wait_state(job.job, "COMPLETED", "TIMEOUT") == "COMPLETED"


def test_more_tasks_than_nodes_are_started(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start(target="tasks")
    end = time.monotonic() + 60
    while len(ranks := wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, 60)) < 4:
        assert time.monotonic() < end
    assert [rank.process for rank in ranks] == [0, 1, 2, 3]


def test_check_says_what_is_granted_and_the_time_limit(fleet: Fleet, hosts: HostPool) -> None:
    login = replace(fleet.hosts["login"], devices=None)

    def checks(target: str) -> dict[str, Check]:
        found = check_allocation(hosts.get("login"), login, target, SlurmTarget("login", TARGETS[target]))
        return {check.name: check for check in found}

    assert checks("tasks")["devices"].detail == "4 devices (h100) on 2 nodes"
    assert checks("spread")["devices"].detail == "4 devices (h100) on 2 nodes", "the nodes have two each"
    assert checks("spread")["time limit"].detail == "none"
    short = checks("short")["time limit"]
    assert (short.state, short.detail.partition(", and")[0]) == (FAIL, "its time limit is 5m00")


def test_ended_job_that_left_the_queue_is_found_in_the_history(
    host: Host, start: Callable[..., Attempt], slurm_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm_cluster.submit("false")
    slurm_cluster.wait_state(job, "FAILED")
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    commands: list[str] = []
    run = slurm.run

    def without_queue(argv: list[str], env: dict[str, str] | None = None, timeout: float = 60.0) -> str:
        commands.append(argv[0])
        if argv[0] == "squeue":
            raise slurm.SlurmError("slurm_load_jobs error: Invalid job id specified")
        return run(argv, env, timeout)

    monkeypatch.setattr(slurm, "run", without_queue)
    monkeypatch.setattr(slurm, "_unanswered_until", 0.0)
    assert slurm._query(job).state == "FAILED"
    assert commands == ["squeue", "sacct", "sacct"], "there is no accounting database: the file of completed jobs"


def test_engine_starts_under_export_none_and_a_late_answer(
    host: Host, start: Callable[..., Attempt], login: SshServer, slurm_cluster: SlurmCluster
) -> None:
    """The job of an sbatch that has timed out is found; a second job of the attempt starts nothing."""
    programs = login.directory / "programs"
    programs.mkdir()
    late = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"
    (programs / "sbatch").write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@" >/dev/null\n{late}\n')
    (programs / "sbatch").chmod(0o755)
    login.stop()
    config = login.directory / "sshd_config"
    config.write_text(config.read_text().replace('"PATH=', f'"PATH={programs}:', 1))
    login.start()
    start(target="bare")
    wait_status(host, records.TRAINING)
    job = job_of(host).job
    files = records.RunPaths(host.root, "run").attempt(1)
    again = slurm_cluster.run("sbatch", "--parsable", f"--output={files.dir}/again.txt", f"{files.dir}/job.sh").strip()
    assert slurm_cluster.wait_state(again, "FAILED") == "FAILED"
    assert slurm_cluster.state(job) == "RUNNING"
    assert f"names another job: job {again} ends" in Path(f"{files.dir}/again.txt").read_text()


def test_sbatch_error_is_reported_and_leaves_no_attempt(login: SshServer, start: Callable[..., Attempt]) -> None:
    expected = "login: sbatch: .*Invalid partition name specified .*correct sbatch: of target none"
    with pytest.raises(LaunchError, match=expected):
        start(target="none")
    assert os.listdir(login.root / "runs/run/attempts") == []


def test_check_reports_commands_allocation_and_devices(fleet: Fleet, hosts: HostPool) -> None:
    checks = {check.name: check for check in check_target(hosts, fleet.target("pair"))}
    assert checks["sbatch"].detail.startswith("slurm-wlm ")
    assert (checks["allocation"].state, checks["devices"].detail) == (PASS, "2 devices (cpu) on 2 nodes")
    assert "n[1-2] (low)" in checks["allocation"].detail
    login = fleet.hosts["login"]
    messages = {
        "none": "Invalid partition name",
        "large": "node configuration is not available",
        "mistyped": "unrecognized option '--nodess=2'",
    }
    for target, message in messages.items():
        [check] = check_allocation(hosts.get("login"), login, target, SlurmTarget("login", TARGETS[target]))
        assert (check.name, check.state) == ("allocation", FAIL)
        assert message in check.detail
    real = replace(login, devices=None, python=None)
    pair = SlurmTarget("login", TARGETS["pair"])
    checks = {check.name: check for check in check_allocation(hosts.get("login"), real, "pair", pair)}
    assert checks["devices"].detail == "4 devices (h100) on 2 nodes"
    assert checks["packages"].state == FAIL, "a login node without GPUs does not show which packages they need"
