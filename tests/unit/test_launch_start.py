"""Attempts on this machine: claimed, started, followed, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import Exit, UsageError
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHost, SshHost
from midstream.hosts.host_pool import Hosts
from midstream.hosts.local_host import LocalMachine
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.launch import host_group_start
from midstream.launch import launch_run as launching
from midstream.launch.bundle import build_bundle, install_engine
from midstream.launch.environment import Environment
from midstream.launch.errors import LaunchError
from midstream.launch.start_attempt import (
    Attempt,
    Launch,
    Prepared,
    kill_attempt,
    start_attempt,
    stop_attempt,
    wait_state,
)
from midstream_engine import records
from support.stand_in_engine import write_stand_in
from support.trees import SOURCES

RUNNING = Environment(sys.executable, "the tests' own")
TRAINING = frozenset({records.TRAINING})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[LocalMachine]:
    """A root with the stand-in's package for an engine. Whatever was started there is ended."""
    machine = LocalMachine("here", LocalHost(root=str(tmp_path / "root")))
    yield machine
    for launched in Path(machine.root).glob("runs/*/attempts/*/launch.json"):
        identity = records.ProcessIdentity.from_json(json.loads(launched.read_text()))
        if records.is_running(identity):
            os.kill(identity.pid, signal.SIGKILL)


@pytest.fixture
def start(host: LocalMachine, tmp_path: Path) -> Callable[..., Attempt]:
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))

    def start(config: LocalHost | None = None, **more: Any) -> Attempt:
        launch = replace(Launch("run", "spot", 3, config_text="a: 1\n"), **more)
        return start_attempt(host, config or LocalHost(), launch, Prepared(engine, RUNNING))

    return start


def told(host: LocalMachine, attempt: Attempt) -> dict[str, Any]:
    """What the engine found in its flags and environment."""
    log = Path(records.RunPaths(host.root, attempt.run_id).attempt(attempt.number).log())
    return json.loads(log.read_text().splitlines()[0])


def test_an_attempt_trains_and_stops_when_asked(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--trainer.num_train_steps", "9"))
    assert (attempt.host, attempt.run_id, attempt.number) == ("here", "run", 1)
    wait_state(host, "run", 1, TRAINING, 30)
    assert records.is_running(attempt.process)
    seen = told(host, attempt)
    assert seen["flags"] == {
        "--config_path": f"{host.root}/runs/run/run.yaml",
        "--trainer.id": "run",
        "--trainer.root": host.root,
        "--trainer.num_train_steps": "9",
    }
    expected = {"ROOT": host.root, "ATTEMPT": "1", "EPOCH": "3", "TARGET": "spot"}
    assert {name: seen["env"][f"MIDSTREAM_{name}"] for name in expected} == expected
    assert seen["env"]["RUN_ID"] == "run"
    stopped = stop_attempt(host, "run", 1, timeout=30)
    assert stopped.state == records.STOPPED
    assert stop_attempt(host, "run", 1, timeout=30) == stopped, "stopping again changes nothing"
    assert start().number == 2


def test_the_hosts_configuration_reaches_the_engine(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    env = {"XLA_FLAGS": "--xla_dump_to=x", "PYTHONPATH": "/extra", "MIDSTREAM_TARGET": "liar"}
    attempt = start(LocalHost(devices=4, env=env, setup=["export FROM_SETUP=yes"]))
    wait_state(host, "run", attempt.number, TRAINING, 30)
    env = told(host, attempt)["env"]
    assert env["JAX_PLATFORMS"] == "cpu"
    assert env["XLA_FLAGS"] == "--xla_dump_to=x --xla_force_host_platform_device_count=4"
    assert env["PYTHONPATH"].startswith(f"{host.root}/engines/")
    assert env["PYTHONPATH"].endswith(":/extra")
    assert env["FROM_SETUP"] == "yes"
    assert env["MIDSTREAM_TARGET"] == "spot"


def test_the_order_is_written_before_the_engine_starts(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    order = records.Command(records.RESTORE, epoch=3, checkpoint="step-7-a001", migration="m")
    attempt = start(order=order, at_least=5)
    assert attempt.number == 5
    assert records.Command.read(records.RunPaths(host.root, "run").attempt(5).command_file) == order
    found = host.call("runs.run_state.attempt_of_migration", root=host.root, run_id="run", migration="m")
    assert found["attempt"] == 5


def test_an_engine_that_dies_is_reported_with_its_last_words(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--fail", "early"))
    said = r"attempt 1 of run on here ended: exit code 1: RuntimeError: the device is held"
    with pytest.raises(LaunchError, match=said) as caught:
        wait_state(host, "run", attempt.number, TRAINING, 30)
    assert any("Traceback" in line for line in caught.value.log)


def test_an_engine_that_says_why_it_failed_is_quoted(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--fail", "told"))
    with pytest.raises(LaunchError, match=r"ended \(failed\): the batch does not divide"):
        wait_state(host, "run", attempt.number, TRAINING, 30)


def test_waiting_ends_in_time_and_can_be_cancelled_and_leaves_the_engine_alone(
    host: LocalMachine, start: Callable[..., Attempt]
) -> None:
    attempt = start()
    wait_state(host, "run", attempt.number, TRAINING, 30)
    with pytest.raises(LaunchError, match="is training after 0 s, not held"):
        wait_state(host, "run", attempt.number, {records.ON_STANDBY}, 0.1)
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        wait_state(host, "run", attempt.number, {records.ON_STANDBY}, 30, cancel)
    assert records.is_running(attempt.process)


def test_killing_returns_once_the_process_is_gone(host: LocalMachine, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_state(host, "run", attempt.number, TRAINING, 30)
    assert kill_attempt(host, "run", attempt.number)
    assert not records.is_running(attempt.process)
    assert not kill_attempt(host, "run", attempt.number)
    with pytest.raises(LaunchError, match="ended: killed with SIGKILL: by hand, or by the system"):
        stop_attempt(host, "run", attempt.number, timeout=5)


def test_the_engine_outlives_the_operator(host: LocalMachine, tmp_path: Path) -> None:
    """The process that started it is killed, with its whole session."""
    write_stand_in(tmp_path / "package")
    code = f"""
import os, signal, sys
sys.path[:0] = {SOURCES!r}
from pathlib import Path
from midstream.fleet.fleet import LocalHost
from midstream.hosts.local_host import LocalMachine
from midstream.launch.bundle import build_bundle, install_engine
from midstream.launch.environment import Environment
from midstream.launch.start_attempt import Launch, Prepared, start_attempt
host = LocalMachine("here", LocalHost(root={host.root!r}))
engine = install_engine(host, build_bundle(Path({str(tmp_path / "package" / "midstream_engine")!r})))
prepared = Prepared(engine, Environment(sys.executable, ""))
start_attempt(host, LocalHost(), Launch("run", "t", config_text=""), prepared)
os.killpg(0, signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], start_new_session=True, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    before = wait_state(host, "run", 1, TRAINING, 30).step
    deadline = time.monotonic() + 20
    while wait_state(host, "run", 1, TRAINING, 30).step <= before:
        assert time.monotonic() < deadline


# ------------------------------------------------------------------------------------------------- --launch


@pytest.fixture
def fleet(host: LocalMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Launching with the stand-in for an engine, in the tests' own interpreter."""
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    config = LocalHost(root=host.root, python=sys.executable)
    (tmp_path / "tiny.yaml").write_text("trainer: !include trainer.yaml\n")
    (tmp_path / "trainer.yaml").write_text("id: configured\n")
    return Fleet(
        {"here": config, "there": config}, {"pair": HostsTarget(["here", "there"]), "spot": HostsTarget(["here"])}
    )


def test_launching_starts_a_run_once_and_its_next_attempt_after_it_stopped(
    host: LocalMachine, fleet: Fleet, tmp_path: Path
) -> None:
    hosts, config, said = Hosts(fleet), tmp_path / "tiny.yaml", []
    attempt = launching.launch_run(hosts, fleet, "spot", config, "mine", ("--a", "b"), said.append)
    assert (attempt.run_id, attempt.number) == ("mine", 1)
    assert any("midstream" in line or "fleet file" in line for line in said)
    wait_state(host, "mine", 1, TRAINING, 60)
    paths = records.RunPaths(host.root, "mine")
    assert records.Fence.read(paths.fence) == records.first_fence("spot")
    assert "id: configured" in Path(paths.config).read_text()
    assert told(host, attempt)["flags"]["--a"] == "b"
    with pytest.raises(UsageError, match=r"run mine is running on here \(attempt 1\)") as caught:
        launching.launch_run(hosts, fleet, "spot", config, "mine")
    assert caught.value.code == Exit.USAGE
    stop_attempt(host, "mine", 1, 30)
    assert launching.launch_run(hosts, fleet, "spot", config, "mine").number == 2


def test_launching_is_refused_where_it_would_fork_the_run(host: LocalMachine, fleet: Fleet, tmp_path: Path) -> None:
    paths = records.RunPaths(host.root, "configured")
    os.makedirs(paths.attempts)
    records.first_fence("spot").sealed(2, "there", 100).write(paths.fence)
    with pytest.raises(UsageError, match="run configured belongs to there since step 100"):
        launching.launch_run(Hosts(fleet), fleet, "spot", tmp_path / "tiny.yaml")


@pytest.mark.parametrize(
    ("epoch", "owner", "said"),
    [
        (2, "other", "run mine belongs to other since step 100, says far"),
        (1, "other", r"far has a run mine already, of other \(epoch 1\)"),
    ],
)
def test_a_run_that_another_host_of_the_fleet_has_is_not_started_again(
    fleet: Fleet, tmp_path: Path, epoch: int, holder: str, said: str
) -> None:
    far = LocalHost(root=str(tmp_path / "far"))
    paths = records.RunPaths(far.root, "mine")
    os.makedirs(paths.attempt(1).dir)
    fence = records.first_fence(holder)
    (fence if epoch == 1 else records.first_fence("spot").sealed(2, holder, 100)).write(paths.fence)
    wider = Fleet({**fleet.hosts, "far": far}, fleet.targets)
    with pytest.raises(UsageError, match=said):
        launching.launch_run(Hosts(wider), wider, "spot", tmp_path / "tiny.yaml", "mine")


def test_a_host_that_does_not_answer_is_named_and_stops_no_launch(
    host: LocalMachine, fleet: Fleet, tmp_path: Path
) -> None:
    wider = Fleet({**fleet.hosts, "gone": SshHost(address="127.0.0.1:9")}, fleet.targets)
    said: list[str] = []
    launching.launch_run(Hosts(wider), wider, "spot", tmp_path / "tiny.yaml", "mine", say=said.append)
    assert any(line.startswith("gone does not answer (") for line in said)


@pytest.mark.parametrize(
    ("target", "config", "run_id", "said"),
    [
        ("spott", "tiny.yaml", None, "did you mean spot"),
        ("spot", "none.yaml", None, "none.yaml: No such file"),
        ("spot", "tiny.yaml", "../x", "run id '../x'"),
    ],
)
def test_what_cannot_be_launched_is_refused_before_anything_is_touched(
    host: LocalMachine, fleet: Fleet, tmp_path: Path, target: str, config: str, run_id: str | None, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        launching.launch_run(Hosts(fleet), fleet, target, tmp_path / config, run_id)
    assert not os.path.exists(host.root)
