"""Attempts on this machine: claimed, started, followed, stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from midstream.errors import Exit, UsageError
from midstream.flags import parse
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig, SshHostConfig
from midstream.headless.launch_and_stop import launch
from midstream.hosts.host import Host
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.install.errors import LaunchError
from midstream.launch import host_group_start
from midstream.launch import launch_run as launching
from midstream.launch.attempt_monitor import kill_ranks, stop_run, wait_ranks
from midstream.launch.input_check import RunInputs
from midstream.launch.launch_request import LaunchRequest
from midstream.launch.start_attempt import Attempt, Launch, Prepared, start_attempt
from midstream.output import Output
from midstream_core import records
from midstream_host.runs import run_state
from support.checkpoints.trees import SOURCES
from support.engines.attempt_states import wait_state
from support.engines.stand_in_engine import write_stand_in
from support.launched_processes import kill_launched
from support.run_directory import write_checkpoint

pytestmark = pytest.mark.drawn

RUNNING = Environment(sys.executable, "the tests' own")


@pytest.fixture
def pool_of() -> Iterator[Callable[[Fleet], HostPool]]:
    """Return a function that makes a pool of a fleet's hosts; all are closed afterwards."""
    with ExitStack() as pools:
        yield lambda fleet: pools.enter_context(closing(HostPool(fleet)))


@pytest.fixture
def hosts(tmp_path: Path, pool_of: Callable[[Fleet], HostPool]) -> HostPool:
    return pool_of(Fleet({"here": LocalHostConfig(root=str(tmp_path / "root"))}))


@pytest.fixture
def host(hosts: HostPool) -> Iterator[Host]:
    """Return a host with an empty root; its engines are killed afterwards."""
    machine = hosts.get("here")
    yield machine
    kill_launched(Path(machine.root))


@pytest.fixture
def start(host: Host, tmp_path: Path) -> Callable[..., Attempt]:
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))

    def start(config: LocalHostConfig | None = None, **more: Any) -> Attempt:
        launch = replace(Launch("run", "spot", 3, config_text="a: 1\n"), **more)
        return start_attempt(host, config or LocalHostConfig(), launch, Prepared(engine, RUNNING))

    return start


def flags_and_environment(host: Host, attempt: Attempt) -> dict[str, Any]:
    """Return the flags and the environment that the engine printed."""
    log = Path(records.RunPaths(host.root, attempt.run_id).attempt(attempt.number).log())
    return json.loads(log.read_text().splitlines()[0])


def test_attempt_trains_and_stops_on_request(host: Host, hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--trainer.num_train_steps", "9"))
    assert (attempt.host, attempt.run_id, attempt.number) == ("here", "run", 1)
    wait_state(hosts, "here", "run")
    assert records.is_running(attempt.process)
    found = flags_and_environment(host, attempt)
    assert found["flags"] == {
        "--config_path": f"{host.root}/runs/run/run.yaml",
        "--trainer.id": "run",
        "--trainer.root": host.root,
        "--trainer.num_train_steps": "9",
    }
    expected = {"ROOT": host.root, "ATTEMPT": "1", "EPOCH": "3", "TARGET": "spot"}
    assert {name: found["env"][f"MIDSTREAM_{name}"] for name in expected} == expected
    assert found["env"]["RUN_ID"] == "run"
    stopped = stop_run(hosts, "here", "run", 1, timeout=30)
    assert stopped.state == records.STOPPED
    assert stop_run(hosts, "here", "run", 1, timeout=30) == stopped, "stopping again changes nothing"
    assert start().number == 2


def test_host_configuration_reaches_the_engine(host: Host, hosts: HostPool, start: Callable[..., Attempt]) -> None:
    env = {"XLA_FLAGS": "--xla_dump_to=x", "PYTHONPATH": "/extra", "MIDSTREAM_TARGET": "liar"}
    attempt = start(LocalHostConfig(devices=4, env=env, setup=["export FROM_SETUP=yes"]))
    wait_state(hosts, "here", "run", attempt.number)
    env = flags_and_environment(host, attempt)["env"]
    assert env["JAX_PLATFORMS"] == "cpu"
    assert env["XLA_FLAGS"] == "--xla_dump_to=x --xla_force_host_platform_device_count=4"
    assert env["PYTHONPATH"].startswith(f"{host.root}/engines/")
    assert env["PYTHONPATH"].endswith(":/extra")
    assert env["FROM_SETUP"] == "yes"
    assert env["MIDSTREAM_TARGET"] == "spot"


def test_command_is_written_before_the_engine_starts(host: Host, start: Callable[..., Attempt]) -> None:
    command = records.Command(records.RESTORE, epoch=3, checkpoint="step-7-a001", migration="m")
    attempt = start(command=command, at_least=5)
    assert attempt.number == 5
    assert records.Command.read(records.RunPaths(host.root, "run").attempt(5).command_file) == command
    found = host.call(run_state.attempt_of_migration)(root=host.root, run_id="run", migration="m")
    assert found is not None
    assert found.attempt == 5


def test_crashed_engine_is_reported_with_its_log(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--fail", "early"))
    message = "attempt 1 of run: process 0 on here failed: exit code 1: RuntimeError: the device is used"
    with pytest.raises(LaunchError, match=message) as caught:
        wait_state(hosts, "here", "run", attempt.number)
    assert any("Traceback" in line for line in caught.value.log)


def test_failed_engine_is_reported_with_its_message(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start(overrides=("--fail", "reported"))
    with pytest.raises(LaunchError, match="process 0 on here failed: the batch does not divide"):
        wait_state(hosts, "here", "run", attempt.number)


def test_wait_ranks_times_out_and_leaves_engine_running(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_state(hosts, "here", "run", attempt.number)
    with pytest.raises(LaunchError, match="not standby after 0 s: process 0 on here is training"):
        wait_ranks(hosts, attempt.ranks, "run", attempt.number, {records.ON_STANDBY}, 0.1)
    assert records.is_running(attempt.process)


def test_kill_ranks_returns_after_the_process_exited(hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_state(hosts, "here", "run", attempt.number)
    kill_ranks(hosts, attempt.ranks, "run", attempt.number)
    assert not records.is_running(attempt.process)
    with pytest.raises(LaunchError, match="process 0 on here failed: killed with SIGKILL, by a user or by the system"):
        stop_run(hosts, "here", "run", attempt.number, timeout=5)


def test_engine_outlives_the_operator(host: Host, hosts: HostPool, tmp_path: Path) -> None:
    """The process that started the engine is killed with its session."""
    write_stand_in(tmp_path / "package")
    code = f"""
import os, signal, sys
sys.path[:0] = {SOURCES!r}
from pathlib import Path
from midstream.fleet.fleet import LocalHostConfig
from midstream.hosts.local_host import LocalHost
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.launch.start_attempt import Launch, Prepared, start_attempt
host = LocalHost("here", LocalHostConfig(root={host.root!r}))
engine = install_engine(host, build_bundle(Path({str(tmp_path / "package")!r})))
prepared = Prepared(engine, Environment(sys.executable, ""))
start_attempt(host, LocalHostConfig(), Launch("run", "t", config_text=""), prepared)
os.killpg(0, signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], start_new_session=True, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    before = wait_state(hosts, "here", "run").step
    deadline = time.monotonic() + 20
    while wait_state(hosts, "here", "run").step <= before:
        assert time.monotonic() < deadline


# ------------------------------------------------------------------------------------------------- --launch


@pytest.fixture
def fleet(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Create a fleet whose engine is the stand-in, in the interpreter of the tests."""
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    monkeypatch.setattr(launching, "read_inputs", lambda *_: RunInputs("bytes", "", "", (), {}))  # by the stand-in
    config = LocalHostConfig(root=host.root, python=sys.executable)
    (tmp_path / "tiny.yaml").write_text("trainer: !include trainer.yaml\n")
    (tmp_path / "trainer.yaml").write_text("id: configured\n")
    return Fleet(
        {"here": config, "there": config}, {"pair": HostsTarget(["here", "there"]), "spot": HostsTarget(["here"])}
    )


def test_launch_starts_next_attempt_only_after_stop(
    host: Host, fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    hosts, config, messages = pool_of(fleet), tmp_path / "tiny.yaml", []
    attempt = launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine", ("--a", "b")), messages.append)
    assert (attempt.run_id, attempt.number) == ("mine", 1)
    assert any("midstream" in line or "fleet file" in line for line in messages)
    wait_state(hosts, "here", "mine", timeout=60)
    paths = records.RunPaths(host.root, "mine")
    assert records.Fence.read(paths.fence) == records.first_fence("spot")
    assert "id: configured" in Path(paths.config).read_text()
    assert flags_and_environment(host, attempt)["flags"]["--a"] == "b"
    with pytest.raises(UsageError, match=r"run mine is running on here \(attempt 1\)") as caught:
        launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine"))
    assert caught.value.code == Exit.USAGE
    stop_run(hosts, "here", "mine", 1, 30)
    assert launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine")).number == 2


@pytest.mark.parametrize("flag", [("--trainer.id", "named"), ("--trainer.id=named",)])
def test_engine_flag_names_the_run_that_is_launched(
    host: Host, fleet: Fleet, tmp_path: Path, flag: tuple[str, ...], pool_of: Callable[[Fleet], HostPool]
) -> None:
    hosts = pool_of(fleet)
    attempt = launching.launch_run(hosts, LaunchRequest("spot", str(tmp_path / "tiny.yaml"), None, (*flag, "--a", "b")))
    assert attempt.run_id == "named"
    wait_state(hosts, "here", "named", timeout=60)
    found = flags_and_environment(host, attempt)
    assert (found["flags"]["--trainer.id"], found["flags"]["--a"]) == ("named", "b")
    assert os.listdir(f"{host.root}/runs") == ["named"]
    stop_run(hosts, "here", "named", 1, 30)


def test_launch_of_a_run_that_never_trained_takes_the_new_config(
    host: Host, fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    hosts, config, run_file = pool_of(fleet), tmp_path / "tiny.yaml", records.RunPaths(host.root, "mine").config
    attempt = launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine", ("--fail", "reported")))
    with pytest.raises(LaunchError, match="the batch does not divide"):
        wait_state(hosts, "here", "mine", attempt.number)
    config.write_text("trainer: {id: corrected}\n")
    messages: list[str] = []
    again = launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine"), say=messages.append)
    assert f"no attempt of mine on spot has trained: it starts with {config}" in messages
    assert "id: corrected" in Path(run_file).read_text()
    wait_state(hosts, "here", "mine", again.number, timeout=60)
    stop_run(hosts, "here", "mine", again.number, 30)
    config.write_text("trainer: {id: later}\n")
    with pytest.raises(UsageError, match=r"mine exists on here, and .* is not its config") as caught:
        launching.launch_run(hosts, LaunchRequest("spot", str(config), "mine"))
    assert "midstream --restart mine" in caught.value.hint
    assert launching.launch_run(hosts, LaunchRequest("spot", None, "mine")).number == 3
    assert "id: corrected" in Path(run_file).read_text(), "it has trained: it continues with its own config"


def test_launch_is_refused_if_it_would_fork_the_run(
    host: Host, fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    paths = records.RunPaths(host.root, "configured")
    os.makedirs(paths.attempts)
    records.first_fence("spot").sealed(2, "there", 100).write(paths.fence)
    with pytest.raises(UsageError, match="run configured belongs to there since step 100"):
        launching.launch_run(pool_of(fleet), LaunchRequest("spot", str(tmp_path / "tiny.yaml")))


@pytest.mark.parametrize(
    ("epoch", "owner", "message"),
    [
        (2, "other", "run mine belongs to other since step 100, according to far"),
        (1, "other", r"far has a run mine already, of other \(ownership 1\)"),
    ],
)
def test_launch_is_refused_if_another_host_has_the_run(
    fleet: Fleet, tmp_path: Path, epoch: int, owner: str, message: str, pool_of: Callable[[Fleet], HostPool]
) -> None:
    far = LocalHostConfig(root=str(tmp_path / "far"))
    paths = records.RunPaths(far.root, "mine")
    os.makedirs(paths.attempt(1).dir)
    fence = records.first_fence(owner)
    (fence if epoch == 1 else records.first_fence("spot").sealed(2, owner, 100)).write(paths.fence)
    wider = Fleet({**fleet.hosts, "far": far}, fleet.targets)
    with pytest.raises(UsageError, match=message):
        launching.launch_run(pool_of(wider), LaunchRequest("spot", str(tmp_path / "tiny.yaml"), "mine"))


def test_restart_of_a_restored_owner_names_its_repair(
    host: Host, fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    """A rollback without signed records; then its source was put back: on the old code each hint led to another."""
    far = LocalHostConfig(root=str(tmp_path / "far"))
    there, here = records.RunPaths(far.root, "mine"), records.RunPaths(host.root, "mine")
    first = records.first_fence("spot")
    for paths, fence in ((here, first), (there, first.sealed(2, "far", 50).rolled_back("spot", 50))):
        os.makedirs(paths.attempt(1).dir)
        fence.write(paths.fence)
    write_checkpoint(here, 40)
    wider = Fleet({**fleet.hosts, "far": far}, fleet.targets)
    with pytest.raises(UsageError, match=r"earlier copy, restored perhaps .*far shows ownership 3 of spot") as caught:
        launching.check_launch(pool_of(wider), LaunchRequest("spot", None, "mine"))
    assert "midstream --repair mine --on here" in caught.value.hint


def test_launch_starts_a_run_again_that_was_migrated_twice(
    host: Host, fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    """The first host has a copy whose fence names the second one."""
    far = LocalHostConfig(root=str(tmp_path / "far"))
    left, here = records.RunPaths(far.root, "mine"), records.RunPaths(host.root, "mine")
    first = records.first_fence("far").sealed(2, "second", 50)
    for paths, fence in ((left, first), (here, first.sealed(3, "spot", 100))):
        os.makedirs(paths.attempt(1).dir)
        fence.write(paths.fence)
    wider = Fleet({**fleet.hosts, "far": far}, fleet.targets)
    with pytest.raises(UsageError, match="spot has lost mine, which was migrated there at step 100"):
        launching.check_launch(pool_of(wider), LaunchRequest("spot", None, "mine"))
    write_checkpoint(here, 120, epoch=3)
    checked = launching.check_launch(pool_of(wider), LaunchRequest("spot", None, "mine"))
    assert (checked.epoch, checked.continues) == (3, True)


def test_unreachable_host_is_reported_without_stopping_launch(
    fleet: Fleet, tmp_path: Path, pool_of: Callable[[Fleet], HostPool]
) -> None:
    wider = Fleet({**fleet.hosts, "down": SshHostConfig(address="127.0.0.1:9")}, fleet.targets)
    messages: list[str] = []
    launching.launch_run(
        pool_of(wider), LaunchRequest("spot", str(tmp_path / "tiny.yaml"), "mine"), say=messages.append
    )
    assert any(line.startswith("down does not answer (") for line in messages)


@pytest.mark.parametrize(
    ("target", "config", "run_id", "message"),
    [
        ("spott", "tiny.yaml", None, "did you mean spot"),
        ("spot", "none.yaml", None, "none.yaml: No such file"),
        ("spot", "tiny.yaml", "../x", "run id '../x'"),
    ],
)
def test_invalid_launch_is_refused_before_any_change(
    host: Host,
    fleet: Fleet,
    tmp_path: Path,
    target: str,
    config: str,
    run_id: str | None,
    message: str,
    pool_of: Callable[[Fleet], HostPool],
) -> None:
    with pytest.raises(UsageError, match=message):
        launching.launch_run(pool_of(fleet), LaunchRequest(target, str(tmp_path / config), run_id))
    assert not os.path.exists(host.root)


@pytest.mark.parametrize("flag", [("--trainer.id", "other"), ("--trainer.root", "/elsewhere")])
def test_launch_into_another_directory_is_refused(
    host: Host, fleet: Fleet, tmp_path: Path, flag: tuple[str, ...], pool_of: Callable[[Fleet], HostPool]
) -> None:
    with pytest.raises(UsageError, match=" ".join(flag)):
        launching.launch_run(pool_of(fleet), LaunchRequest("spot", str(tmp_path / "tiny.yaml"), "mine", flag))
    assert not os.path.exists(host.root)


@pytest.mark.parametrize(
    ("fail", "reason"),
    [("early", "the device is used by another process"), ("reported", "the batch does not divide")],
)
def test_launch_reports_why_the_run_failed(host: Host, fleet: Fleet, tmp_path: Path, fail: str, reason: str) -> None:
    options, engine = parse(
        ["--launch", str(tmp_path / "tiny.yaml"), "--on", "spot", "--run-id", "mine", "--", "--fail", fail]
    )
    messages = StringIO()
    with pytest.raises(LaunchError, match=f"attempt 1 of mine: process 0 on here failed: .*{reason}") as caught:
        launch(fleet, options, engine, Output(True, StringIO(), messages))
    assert (caught.value.code, caught.value.hint) == (Exit.FAILED, "midstream --log mine has its log")


def test_launch_returns_when_the_run_trains(host: Host, fleet: Fleet, tmp_path: Path) -> None:
    options, _ = parse(["--launch", str(tmp_path / "tiny.yaml"), "--on", "spot", "--run-id", "mine"])
    values, messages = StringIO(), StringIO()
    assert launch(fleet, options, (), Output(True, values, messages)) == Exit.DONE
    [result] = map(json.loads, values.getvalue().splitlines())
    step = result.pop("step")
    assert step >= 0
    assert result == {
        "exit_code": 0, "event": "result", "ok": True, "run": "mine", "target": "spot", "attempt": 1,
        "state": "training",
    }  # fmt: skip
    assert "mine: starting" in messages.getvalue()
