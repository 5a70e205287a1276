"""Secrets of an engine on another host: nothing but the engine reads them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from midstream.fleet.fleet_file import load_fleet
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.launch import host_group_start
from midstream.launch import launch_run as launching
from midstream.launch.attempt_monitor import stop_run
from midstream.launch.input_check import RunInputs
from midstream.launch.launch_request import LaunchRequest
from midstream_core import records
from midstream_host.runs import attempt_secrets
from simulators.sshd import Lab, SshServer
from support.checkpoints.trees import files
from support.command_line import TINY, midstream
from support.engines.attempt_states import wait_state
from support.engines.stand_in_engine import TRAIN, write_stand_in

pytestmark = pytest.mark.system
RECORD_DIGEST = """
import hashlib, os
from midstream_core import records
directory = records.RunPaths(os.environ["MIDSTREAM_ROOT"], os.environ["RUN_ID"]).attempt(1).dir
with open(os.path.join(directory, "digest"), "w") as file:
    file.write(hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest())
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """Set a secret in the operator's environment, under the name of the fleet file."""
    value = secrets.token_hex(20)
    monkeypatch.setenv("LAB_HF_TOKEN", value)
    return value


@pytest.fixture
def server(server: SshServer) -> SshServer:
    """Add one device and a secret to the server's fleet entry."""
    server.config = replace(server.config, devices=1, secrets={"HF_TOKEN": "env:LAB_HF_TOKEN"})
    return server


@pytest.fixture
def hosts(lab: Lab, server: SshServer) -> Iterator[HostPool]:
    opened = HostPool(load_fleet(lab.fleet_file(gpu1=server.config)))
    yield opened
    opened.close()


def command_lines() -> Iterator[bytes]:
    """Yield the command line of every process of this machine."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path("/proc", pid, "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def test_secret_reaches_engine_and_no_file_or_command_line(
    lab: Lab, server: SshServer, hosts: HostPool, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = write_stand_in(tmp_path / "packages")
    (packages / "midstream_engine" / "train.py").write_text(RECORD_DIGEST + TRAIN.replace("dict(os.environ)", "{}"))
    bundle = build_bundle(packages)
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    monkeypatch.setattr(
        host_group_start, "prepare_environment", lambda *_: Environment(sys.executable, "the tests' own")
    )
    monkeypatch.setattr(launching, "read_inputs", lambda *_: RunInputs("bytes", "", "", (), {}))  # by the stand-in
    (tmp_path / "tiny.yaml").write_text("a: 1\n")
    messages: list[str] = []
    launching.launch_run(hosts, LaunchRequest("gpu1", str(tmp_path / "tiny.yaml"), "run"), say=messages.append)
    wait_state(hosts, "gpu1", "run", timeout=60)

    paths = records.RunPaths(str(server.root), "run")
    digest = Path(paths.attempt(1).dir, "digest").read_text()
    assert digest == hashlib.sha256(secret.encode()).hexdigest(), "the engine has it"
    assert not any(secret.encode() in line for line in command_lines())
    assert secret not in "\n".join(messages)
    status = midstream("--fleet", hosts.fleet.path, "--status", "--json")
    assert status.code == 0
    assert secret not in status.stdout + status.stderr
    stop_run(hosts, "gpu1", "run", 1, 60)

    holding = [path for path, content in files(lab.directory).items() if secret.encode() in content]
    assert holding == [], "its supervisor has removed the file"


def test_secret_files_are_private_and_removed(tmp_path: Path) -> None:
    root = str(tmp_path)
    Path(records.RunPaths(root, "run").attempts).mkdir(parents=True)
    before = os.umask(0)  # the most permissive
    try:
        for number, process in ((1, "0"), (1, "1"), (1, "")):
            attempt_secrets.put_secrets(
                attempt_secrets.secrets_file(root, "run", number, process), {"HF_TOKEN": "hunter2"}
            )
    finally:
        os.umask(before)
    directory = Path(records.RunPaths(root, "run").dir, ".secrets")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {path.name for path in directory.iterdir()} == {"001-0.json", "001-1.json", "001.json"}
    for path in directory.iterdir():
        assert json.loads(path.read_text()) == {"HF_TOKEN": "hunter2"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_uid == os.geteuid()
    attempt_secrets.put_secrets(attempt_secrets.secrets_file(root, "run", 2, "0"), {"HF_TOKEN": "other"})
    assert [path.name for path in directory.iterdir()] == ["002-0.json"], "those of an ended attempt are removed"
    attempt_secrets.remove_secrets(root, "run")
    assert not directory.exists()
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")
    attempt_secrets.put_secrets(attempt_secrets.secrets_file(root, "run", 3, "0"), {"HF_TOKEN": "other"})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_missing_secret_refuses_launch(server: SshServer, hosts: HostPool) -> None:
    refused = midstream("--fleet", hosts.fleet.path, "--launch", TINY, "--on", "gpu1")
    assert refused.code == 2, refused.stderr
    line = "hosts.gpu1.secrets.HF_TOKEN: LAB_HF_TOKEN is not set in this environment (export LAB_HF_TOKEN=...)"
    assert line in refused.stderr
    assert not server.root.exists(), "nothing is installed"
