"""A secret on its way to an engine on another host: the engine has it, and nothing else ever shows it."""

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
from midstream.hosts.host_pool import Hosts
from midstream.launch import host_group_start
from midstream.launch.bundle import build_bundle, install_engine
from midstream.launch.environment import Environment
from midstream.launch.launch_run import launch_run
from midstream.launch.start_attempt import stop_attempt, wait_state
from midstream.remote.runs import attempts
from midstream_engine import records
from simulators.sshd import Lab, SshServer
from support.command_line import midstream
from support.stand_in_engine import TRAIN, write_stand_in

pytestmark = pytest.mark.system
HEARD = """
import hashlib, os
from midstream_engine import records
directory = records.RunPaths(os.environ["MIDSTREAM_ROOT"], os.environ["RUN_ID"]).attempt(1).dir
with open(os.path.join(directory, "heard"), "w") as file:
    file.write(hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest())
"""


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """In the environment of the operator, where the fleet file says that it is."""
    value = secrets.token_hex(20)
    monkeypatch.setenv("LAB_HF_TOKEN", value)
    return value


@pytest.fixture
def server(lab: Lab) -> SshServer:
    made = lab.host("gpu1", devices=1)
    made.config = replace(made.config, secrets={"HF_TOKEN": "env:LAB_HF_TOKEN"})
    return made


@pytest.fixture
def hosts(lab: Lab, server: SshServer) -> Iterator[Hosts]:
    opened = Hosts(load_fleet(lab.fleet_file(gpu1=server.config)))
    yield opened
    opened.close()


def command_lines() -> Iterator[bytes]:
    """Of every process of this machine."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            yield Path("/proc", pid, "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue


def test_an_engine_reads_a_secret_that_no_other_file_and_no_command_line_holds(
    lab: Lab, server: SshServer, hosts: Hosts, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = write_stand_in(tmp_path / "package")
    (package / "train.py").write_text(HEARD + TRAIN.replace("dict(os.environ)", "{}"))
    bundle = build_bundle(package)
    monkeypatch.setattr(host_group_start, "install_engine", lambda host: install_engine(host, bundle))
    monkeypatch.setattr(
        host_group_start, "prepare_environment", lambda *_: Environment(sys.executable, "the tests' own")
    )
    (tmp_path / "tiny.yaml").write_text("a: 1\n")
    said: list[str] = []
    launch_run(hosts, hosts.fleet, "gpu1", tmp_path / "tiny.yaml", "run", say=said.append)
    wait_state(hosts.get("gpu1"), "run", 1, {records.TRAINING}, 60)

    paths = records.RunPaths(str(server.root), "run")
    heard = Path(paths.attempt(1).dir, "heard").read_text()
    assert heard == hashlib.sha256(secret.encode()).hexdigest(), "the engine has it"
    assert not any(secret.encode() in line for line in command_lines())
    assert secret not in "\n".join(said)
    told = midstream("--fleet", hosts.fleet.path, "--status", "--json")
    assert told.code == 0
    assert secret not in told.stdout + told.stderr
    stop_attempt(hosts.get("gpu1"), "run", 1, 60)

    holding = [path for path in lab.directory.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert holding == [], "its supervisor has read the file, and removed it"


def test_secrets_lie_where_their_owner_alone_reads_them_and_only_while_they_are_needed(tmp_path: Path) -> None:
    root = str(tmp_path)
    Path(records.RunPaths(root, "run").attempts).mkdir(parents=True)
    before = os.umask(0)  # the most careless
    try:
        for number, process in ((1, "0"), (1, "1"), (1, "")):
            attempts.put_secrets(attempts.secrets_file(root, "run", number, process), {"HF_TOKEN": "hunter2"})
    finally:
        os.umask(before)
    directory = Path(records.RunPaths(root, "run").dir, ".secrets")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {path.name for path in directory.iterdir()} == {"001-0.json", "001-1.json", "001.json"}
    for path in directory.iterdir():
        assert json.loads(path.read_text()) == {"HF_TOKEN": "hunter2"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_uid == os.geteuid()
    attempts.put_secrets(attempts.secrets_file(root, "run", 2, "0"), {"HF_TOKEN": "other"})
    assert [path.name for path in directory.iterdir()] == ["002-0.json"], "of an attempt that has ended none is left"
    attempts.remove_secrets(root, "run")
    assert not directory.exists()
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")
    attempts.put_secrets(attempts.secrets_file(root, "run", 3, "0"), {"HF_TOKEN": "other"})
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_secret_that_is_not_to_be_had_here_is_named_before_anything_is_started(
    server: SshServer, hosts: Hosts, tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text("a: 1\n")
    refused = midstream("--fleet", hosts.fleet.path, "--launch", tmp_path / "tiny.yaml", "--on", "gpu1")
    assert refused.code == 2, refused.stderr
    line = "hosts.gpu1.secrets.HF_TOKEN: LAB_HF_TOKEN is not set in this environment (export LAB_HF_TOKEN=...)"
    assert line in refused.stderr
    assert not list(server.root.glob("runs/*/attempts/*/launch*.json"))
