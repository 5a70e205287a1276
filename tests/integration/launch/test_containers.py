"""Engines in containers: podman starts them; the command lines of the others are recorded by stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.check.check_result import FAIL
from midstream.check.host_checks import check_python
from midstream.errors import UsageError
from midstream.fleet.container_config import ContainerConfig
from midstream.fleet.fleet import Fleet, HostsTarget, LocalHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.container_command import in_container, srun_flags
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment, prepare_environment
from midstream.install.errors import LaunchError
from midstream.launch import host_group_start
from midstream.launch.attempt_monitor import kill_ranks, look_at_ranks, stop_run, wait_ranks
from midstream.launch.start_attempt import Attempt, Launch
from midstream_core import records
from midstream_host.machine import checks
from simulators.clusters.podman import Podman, podman
from simulators.object_stores.bucket import BucketServer
from simulators.sshd import Lab, SshServer, environment
from support.command_line import SLOWER, TINY, Run, midstream
from support.engines.stand_in_engine import write_stand_in

__all__ = ["podman"]
pytestmark = [pytest.mark.drawn, pytest.mark.system]
TRAINING = frozenset({records.TRAINING})


def container_host(lab: Lab, podman: Podman, name: str, devices: int) -> SshServer:
    """Start an sshd whose sessions reach the tests' podman, with a fleet entry that has its container."""
    server = lab.host(name, devices=devices)
    server.stop()
    config = server.directory / "sshd_config"
    config.write_text(environment(**podman.environment) + config.read_text())
    server.start()
    server.config = replace(server.config, container=podman.container)
    return server


@pytest.fixture
def server(lab: Lab, podman: Podman) -> SshServer:
    return container_host(lab, podman, "boxed", 2)


@pytest.fixture
def fleet(server: SshServer) -> Fleet:
    plain = replace(server.config, container=None)
    target = HostsTarget(["plain"], container=server.config.container)
    return Fleet({"boxed": server.config, "plain": plain}, {"cell": target})


@pytest.fixture
def start(
    fleet: Fleet, hosts: HostPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Attempt]]:
    bundle = build_bundle(write_stand_in(tmp_path / "package"))
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    started: list[Attempt] = []

    def start(*overrides: str, target: str = "boxed", checked: bool = False) -> Attempt:
        if not checked:  # importing jax in a container takes seconds
            ready = Environment(sys.executable, "the tests' own")
            monkeypatch.setattr(host_group_start, "prepare_environment", lambda *_: ready)
        launch = Launch("run", target, config_text="a: 1\n", overrides=overrides)
        started.append(host_group_start.start(hosts, fleet.target(target), launch))
        return started[-1]

    yield start
    for attempt in started:
        kill_ranks(hosts, attempt.ranks, "run", attempt.number, 60)


@pytest.mark.parametrize("target", ["boxed", "cell"])
def test_engine_runs_in_container_and_is_stopped(
    podman: Podman, hosts: HostPool, start: Callable[..., Attempt], target: str
) -> None:
    attempt = start("--note", "it's $HOME", target=target, checked=target == "boxed")
    [rank] = wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, 60)
    assert rank.status is not None
    assert records.is_running(rank.status.identity), "its process id is the host's"
    assert len(podman.running()) == 1
    assert Path(f"/proc/{rank.status.pid}/root").resolve() == Path("/"), "resolved in this process' view"
    assert os.stat(f"/proc/{rank.status.pid}/root/").st_ino != os.stat("/").st_ino, "it has a root of its own"
    host = hosts.get(attempt.host)
    log = json.loads(Path(records.RunPaths(host.root, "run").attempt(1).log()).read_text().splitlines()[0])
    assert log["flags"]["--note"] == "it's $HOME", "no shell expands it"
    assert log["env"]["MIDSTREAM_HOST"] == host.name
    assert "SSH_CONNECTION" not in log["env"], "only the engine's variables"
    directory = Path(os.readlink(f"/proc/{rank.status.pid}/cwd"))
    assert directory.parent == Path(records.RunPaths(host.root, "run").attempt(1).dir)
    assert stop_run(hosts, attempt.host, "run", 1, 60).state == records.STOPPED
    assert podman.running() == []


def test_killed_engine_leaves_no_container(podman: Podman, hosts: HostPool, start: Callable[..., Attempt]) -> None:
    attempt = start()
    wait_ranks(hosts, attempt.ranks, "run", 1, TRAINING, 60)
    kill_ranks(hosts, attempt.ranks, "run", 1, 60)
    [rank] = look_at_ranks(hosts, attempt.ranks, "run", 1)
    assert (rank.running, rank.supervised) == (False, False)
    assert rank.exit is not None
    assert rank.exit.signal == "SIGKILL", "the supervisor in the container has recorded it"
    end = time.monotonic() + 30
    while podman.running():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_image_that_is_missing_is_named_before_start(fleet: Fleet, podman: Podman) -> None:
    wrong = replace(podman.container, image="localhost/no-such-image", options=["--pull=never"])
    other = Fleet({"boxed": replace(fleet.hosts["boxed"], container=wrong)})
    hosts = HostPool(other)
    try:
        with pytest.raises(LaunchError, match=r"in the podman container localhost/no-such-image: .*no-such-image"):
            host_group_start.prepare_target(hosts, other.target("boxed"))
    finally:
        hosts.close()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, r"apptainer: not found .*install apptainer on box"),
        ("echo 'docker: Cannot connect to the daemon' >&2; echo >&2; echo \"Run 'docker run --help'\" >&2; exit 125",
         r"docker: Cannot connect to the daemon \(correct container: in the fleet file"),
        ("echo 'no such file: /usr/bin/python3' >&2; exit 127", r"an image with Python 3.8 or newer"),
    ],
)  # fmt: skip
def test_runtime_that_starts_no_container_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    """The last line of docker's stderr names its help, and the error is before it."""
    runtime = "apptainer" if script is None else "docker"
    if script is not None:
        (tmp_path / runtime).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / runtime).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = LocalHostConfig(root=str(tmp_path / "root"), container=ContainerConfig("jax:25", runtime))
    hosts = HostPool(Fleet({"box": config}))
    try:
        with pytest.raises(LaunchError, match=message):
            prepare_environment(hosts.get("box"), config)
        check = check_python(hosts.get("box"), config, hosts.get("box").call(checks.survey)(root=str(tmp_path)))
        assert (check.state, check.name, runtime in check.detail) == (FAIL, "container", True), check
    finally:
        hosts.close()


@pytest.mark.slow
def test_run_migrates_into_container_and_back(lab: Lab, podman: Podman, runs: Callable[..., Run]) -> None:
    boxed, plain = container_host(lab, podman, "boxed", 2), lab.host("plain", devices=1)
    fleet = lab.fleet_file(plain=plain.config, boxed=replace(boxed.config, container=None))
    text = json.dumps(vars(podman.container))
    fleet.write_text(fleet.read_text() + f"targets:\n  cell: {{type: hosts, hosts: [boxed], container: {text}}}\n")
    training = (*SLOWER, "--trainer.num_train_steps", "20000")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "plain", "--run-id", "r", "--", *training).code == 0
    source, target = runs(plain.root, "r"), runs(boxed.root, "r")
    source.wait_step(5)
    flags = ("--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "cell", *flags)
    assert moved.code == 0, moved.stderr
    verdicts = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert (verdicts.pop("continuity"), set(verdicts.values())) == ("not checked", {"verified"})
    assert (len(podman.running()), target.fence.owner) == (1, "cell")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "plain", *flags)
    assert moved.code == 0, moved.stderr
    assert podman.running() == []
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"


@pytest.mark.slow
def test_run_in_container_keeps_checkpoints_in_bucket(
    lab: Lab, podman: Podman, bucket: BucketServer, runs: Callable[..., Run]
) -> None:
    """The engine in the container reads and writes the bucket; copies run in it too."""
    plain, server = lab.host("plain", devices=1), lab.host("boxed", devices=2)
    server.stop()
    config = server.directory / "sshd_config"
    config.write_text(environment(**podman.environment, **bucket.environment) + config.read_text())
    server.start()
    boxed = replace(server.config, container=podman.container, store="ours")
    fleet = lab.fleet_file(plain=plain.config, boxed=replace(boxed, container=None))
    text = json.dumps(vars(podman.container))
    fleet.write_text(
        f"{fleet.read_text()}targets:\n  cell: {{type: hosts, hosts: [boxed], container: {text}}}\n"
        "stores: {ours: {url: gs://runs/of/ours}}\n"
    )
    training = (*SLOWER, "--trainer.num_train_steps", "20000", "--trainer.checkpointer.keep", "[{every: 20}]")
    assert midstream("--fleet", fleet, "--launch", TINY, "--on", "plain", "--run-id", "r", "--", *training).code == 0
    source, target = runs(plain.root, "r"), runs(server.root, "r")
    source.wait_step(5)
    flags = ("--yes", "--certify-steps", "4", "--healthy-steps", "8", "--json")
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "cell", *flags)
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr)
    assert moved.result["certificate"]["valid"], moved.result
    sealed = moved.result["certificate"]["checkpoint"]
    assert bucket.blobs("runs", f"of/ours/runs/r/checkpoints/{sealed}/{records.MANIFEST}")
    assert target.checkpoints() == [], "its checkpoints are in the bucket alone"
    target.wait_step(moved.result["certificate"]["step"] + 45, timeout=180)
    own = [name for name in bucket.blobs("runs", "of/ours/runs/r/checkpoints/") if "-a002/manifest" in name]
    assert own, "the engine in the container has saved there"
    moved = midstream("--fleet", fleet, "--migrate", "r", "--to", "plain", *flags)
    assert moved.code == 0, (moved.stdout[-2000:], moved.stderr)
    assert moved.result["certificate"]["valid"], moved.result
    assert podman.running() == []
    rows = source.spliced()
    assert sorted(rows) == list(range(len(rows))), "no step is missing"


# ------------------------------------------------------------------------------------------ command lines


RECORD = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([os.getcwd(), *sys.argv[1:]]))\n"


def recorded(tmp_path: Path, config: ContainerConfig, argv: list[str]) -> list[str]:
    """Run a wrapped command with a stand-in of its runtime; return its working directory and arguments."""
    program = tmp_path / config.runtime
    program.write_text(RECORD)
    program.chmod(0o755)
    wrapped = in_container(config, argv, root="/data/my runs", variables=["A", "B"])
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(wrapped, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


COMMAND = ["python3", "-c", "print('it is')", "--flag", "a b", "$HOME"]


def test_docker_gets_root_mounts_variables_and_user(tmp_path: Path) -> None:
    config = ContainerConfig("jax:25", "docker", ["/scratch:/s:ro"], ["--shm-size=8g"])
    directory, *words = recorded(tmp_path, config, COMMAND)
    assert words[-len(COMMAND) - 1 :] == ["jax:25", *COMMAND]
    assert words[:5] == ["run", "--rm", "--network=host", "--ipc=host", "--pid=host"]
    for word in ("--volume=/data/my runs:/data/my runs", "--volume=/scratch:/s:ro", "--env=A", "--env=B",
                 "--env=CUDA_VISIBLE_DEVICES", f"--user={os.getuid()}:{os.getgid()}", f"--workdir={directory}",
                 "--shm-size=8g", "--entrypoint="):  # fmt: skip
        assert word in words, word


def test_credentials_of_machine_are_mounted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, key = tmp_path / "my home", tmp_path / "key.json"
    (home / ".aws").mkdir(parents=True)
    (home / ".config" / "gcloud").mkdir(parents=True)
    key.write_text("{}")
    monkeypatch.setenv("HOME", str(home))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.setenv(name, str(key))
    monkeypatch.delenv("CLOUDSDK_CONFIG", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    mounted = f"{home}/.config/gcloud"
    _, *words = recorded(tmp_path, ContainerConfig("jax:25", "docker", [mounted]), COMMAND)
    assert words.count(f"{key}:{key}:ro") == 1, "two variables name it"
    assert f"{home}/.aws:{home}/.aws:ro" in words
    assert f"{mounted}:{mounted}:ro" not in words, "it is mounted already"
    assert f"AWS_SHARED_CREDENTIALS_FILE={home}/.aws/credentials" in words
    assert f"AWS_CONFIG_FILE={tmp_path}/none" in words
    assert f"CLOUDSDK_CONFIG={mounted}" in words
    assert not any("none:" in word for word in words), "a file that is missing is not mounted"
    _, *words = recorded(tmp_path, ContainerConfig("/images/jax.sif", "apptainer"), COMMAND)
    assert words.count(f"{key}:{key}:ro") == 1
    assert not any("AWS_CONFIG_FILE=" in word for word in words), "it passes the environment and the home on"


def test_apptainer_and_enroot_keep_working_directory(tmp_path: Path) -> None:
    directory, *words = recorded(tmp_path, ContainerConfig("/images/jax.sif", "apptainer"), COMMAND)
    assert words[-len(COMMAND) - 1 :] == ["/images/jax.sif", *COMMAND]
    assert words[:2] == ["exec", "--bind=/data/my runs:/data/my runs"]
    assert words[words.index("--pwd") + 1] == directory
    directory, *words = recorded(tmp_path, ContainerConfig("jax", "enroot", options=["--root"]), COMMAND)
    assert words[:3] == ["start", "--rw", "--mount=/data/my runs:/data/my runs"]
    inside = words[words.index("jax") + 1 :]
    assert words[words.index("jax") - 1] == "--root"
    done = subprocess.run([*inside[: -len(COMMAND)], "pwd"], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), inside[-len(COMMAND) :]) == (directory, COMMAND)


def test_pyxis_container_is_started_by_srun() -> None:
    config = ContainerConfig("docker://jax:25", "pyxis", ["/data:/d:ro"], ["--container-writable"])
    assert in_container(config, COMMAND, root="/root") == COMMAND
    assert srun_flags(config, root="/runs") == [
        "--container-image=docker://jax:25", "--container-mounts=/runs:/runs,/data:/d:ro", "--no-container-mount-home",
        "--container-writable",
    ]  # fmt: skip
    assert srun_flags(replace(config, runtime="docker"), root="/runs") == []


@pytest.mark.parametrize(
    ("container", "message"),
    [
        ("{runtime: podman}", "hosts.a.container has no image"),
        ("{image: x, runtime: dockr}", r"hosts.a.container.runtime is 'dockr' .*docker"),
        ("{image: x, runtime: pyxis}", "pyxis, which is a plugin of SLURM's srun"),
        ("{image: x, mounts: [data]}", "hosts.a.container.mounts has 'data'"),
        ("{image: x, runtime: podman, options: [--pid=private]}", r"options has --pid=private .*by its process id"),
        ("{image: x, options: [--name, engine]}", "options has --name"),
        ("{image: x, runtime: apptainer, options: [-C]}", "options has -C"),
        ("{image: x, mount: [/data]}", r"hosts.a.container.mount is unknown .*mounts"),
    ],
)
def test_wrong_container_is_refused_with_hint(container: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_fleet(f"hosts: {{a: {{type: local, container: {container}}}}}", "fleet.yaml")
