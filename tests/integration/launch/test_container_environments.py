"""Environments in images, and clients of buckets in containers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.fleet.container_config import ContainerConfig
from midstream.fleet.fleet import HostConfig
from midstream.hosts.container_host import ContainerHost, engine_host
from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.install.environment import Environment, prepare_environment
from midstream.install.errors import LaunchError
from midstream.migrate.checkpoint_store import BucketStore
from midstream.stores.bucket_access import Access
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.copy_tree import copy_tree
from midstream.transfer.endpoint import Endpoint
from simulators.clusters.podman import Podman, podman
from simulators.object_stores.s3_server import s3_server
from simulators.sshd import Lab, SshServer, environment
from support.checkpoints.trees import assert_same_tree, write_checkpoint
from support.command_line import Run, midstream
from support.trainers.script_trainer import write_script
from support.wheels import PACKAGE, write_wheel

__all__ = ["podman"]
pytestmark = [pytest.mark.drawn, pytest.mark.system]


def boxed(
    lab: Lab, podman: Podman, name: str, *, wheels: Path | None = None, sshd: str = "", **variables: object
) -> SshServer:
    """Start an sshd whose engines run in containers; their installers have ``wheels`` alone, and no network."""
    server = lab.host(name, python=None, sshd=environment(**podman.environment, **variables) + sshd)
    server.root.mkdir()  # a launch installs the engine there before it starts a container
    container, env = podman.container, {}
    if wheels is not None:
        container = replace(container, mounts=[*container.mounts, f"{wheels}:/wheels:ro"])
        env = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}
    server.config = replace(server.config, container=container, env=env)
    return server


@contextmanager
def connected(config: HostConfig) -> Iterator[Host]:
    host = open_host("box", config)
    host.connect()
    try:
        yield host
    finally:
        host.close()


def prepared(config: HostConfig, lock: str, messages: list[str]) -> Environment:
    with connected(config) as host:
        return prepare_environment(host, config, messages.append, lock=lock, modules=[PACKAGE])


def test_environment_is_built_in_image_once(lab: Lab, podman: Podman, tmp_path: Path) -> None:
    lock, messages = write_wheel(tmp_path / "wheels"), list[str]()
    config = boxed(lab, podman, "box", wheels=tmp_path / "wheels").config
    made = prepared(config, lock, messages)
    assert made.how == f"built from the lock with venv and pip in the podman container {podman.container.image}"
    assert f"python3 in the podman container {podman.container.image}: cannot import {PACKAGE}" in messages[0]
    assert os.path.realpath(made.python).startswith("/usr/bin/"), "its interpreter is the image's"
    with connected(config) as host:
        inside = engine_host(host, config)
        done = inside.run([made.python, "-c", f"import {PACKAGE} as p, os; print(p.VALUE, os.path.exists('/wheels'))"])
        assert done.stdout == b"42 True\n", done.stderr
        assert not os.path.exists("/wheels")
    stamp = Path(made.python).parents[1] / ".complete.json"
    before = stamp.stat().st_mtime_ns
    assert prepared(config, lock, messages) == made
    assert stamp.stat().st_mtime_ns == before, "the second launch finds it"
    # Another image has an interpreter of its own.
    assert podman.run("tag", podman.container.image, "localhost/other").returncode == 0
    assert config.container is not None
    other = prepared(replace(config, container=replace(config.container, image="localhost/other")), lock, messages)
    assert other.python != made.python


def test_named_interpreter_of_image_is_not_replaced(lab: Lab, podman: Podman, tmp_path: Path) -> None:
    lock = write_wheel(tmp_path / "wheels")
    config = boxed(lab, podman, "box", wheels=tmp_path / "wheels").config
    with pytest.raises(LaunchError, match=rf"/usr/bin/python3 in the podman container .*{PACKAGE}") as caught:
        prepared(replace(config, python="/usr/bin/python3"), lock, [])
    assert "leave python: out" in caught.value.hint
    with pytest.raises(LaunchError, match=r"/no/python in the podman container .*/no/python"):
        prepared(replace(config, python="/no/python"), lock, [])
    assert not (Path(config.root) / "envs").exists()


def test_pyxis_builds_no_environment(lab: Lab, tmp_path: Path) -> None:
    lock = write_wheel(tmp_path / "wheels")
    pyxis = replace(lab.host("login", python=None).config, container=ContainerConfig("docker://jax", "pyxis"))
    assert prepared(pyxis, lock, []).how.endswith("not checked before the job starts")


def test_copies_use_identity_of_machine_in_container(lab: Lab, podman: Podman, tmp_path: Path) -> None:
    """The credentials are in the home directory of the host, and this machine has none."""
    home = tmp_path / "home"
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text("[default]\naws_access_key_id = box\naws_secret_access_key = x\n")
    with s3_server("runs") as s3:
        s3.admits = {"box": ""}
        server = boxed(lab, podman, "box", HOME=home)
        config = replace(server.config, python=sys.executable)
        access = Access(endpoint=s3.url, region="us-east-1")
        with connected(config) as host:
            checkpoint = Path(host.root, "runs", "r", "checkpoints", "step-1-a001")
            write_checkpoint(checkpoint, random.Random(4))
            inside = engine_host(host, config)
            assert isinstance(inside, ContainerHost)
            store = BucketStore(host, "r", "s3://runs/x", access)
            there = store.endpoint("step-1-a001", inside, sys.executable)
            own = BucketHost("s3://runs/x", access, via=inside, python=sys.executable)
            assert own.access_problem("s3://runs/x") == ("", "")
            here = Endpoint(host, str(checkpoint))
            up = copy_tree(here, there)
            assert any("direct" in route for route in up.routes), up.routes
            back = Endpoint(host, f"{host.root}/runs/s/checkpoints/step-1-a001")
            copy_tree(there, back)
        assert s3.blobs("runs", "x/runs/r/checkpoints/step-1-a001/manifest.json")
        assert_same_tree(Path(back.directory), checkpoint)


@pytest.mark.slow
def test_trainer_migrates_into_image_with_its_packages(
    lab: Lab, podman: Podman, runs: Callable[..., Run], tmp_path: Path
) -> None:
    lock = write_wheel(tmp_path / "wheels")
    box = boxed(lab, podman, "box", wheels=tmp_path / "wheels")
    # The image has the system's Python, and the environments are compared: the other host gets the same.
    plain = lab.host("plain", python=None, sshd=environment(PATH="/usr/sbin:/usr/bin:/sbin:/bin"))
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels"),
               "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(tmp_path / "wheels"), "UV_OFFLINE": "1"}  # fmt: skip
    plain.config = replace(plain.config, env=offline)
    fleet = lab.fleet_file(plain=plain.config, box=replace(box.config, container=None))
    container = {name: value for name, value in vars(box.config.container).items() if value}
    fleet.write_text(f"{fleet.read_text()}targets:\n  cell: {{type: hosts, hosts: [box], container: {container}}}\n")
    more = f"environment: {{lock: packages.txt, packages: [{PACKAGE}]}}"
    file = write_script(tmp_path / "code", steps=100_000, every=25, more=more)
    (file.parent / "packages.txt").write_text(lock)
    script = file.parent / "train.py"
    script.write_text(f"import {PACKAGE}\nassert {PACKAGE}.VALUE == 42\n{script.read_text()}")
    launched = midstream("--fleet", fleet, "--launch", file, "--on", "plain", "--run-id", "r")
    assert launched.code == 0, launched.stderr
    source, target = runs(plain.root, "r"), runs(box.root, "r")
    source.wait(lambda run: bool(run.checkpoints()), "a checkpoint")
    words = ("--fleet", fleet, "--migrate", "r", "--to", "cell", "--yes", "--healthy-steps", "3", "--json")
    moved = midstream(*words)
    assert moved.code == 0, (moved.stdout, moved.stderr)
    verdicts = {claim["name"]: claim["verdict"] for claim in moved.result["certificate"]["claims"]}
    assert verdicts["environment"] == "verified", verdicts
    assert len(podman.running()) == 1
    assert target.fence.owner == "cell"
    assert midstream("--fleet", fleet, "--stop", "r").code == 0
    assert podman.running() == []
