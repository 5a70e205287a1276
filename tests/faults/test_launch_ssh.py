"""Launching over a real SSH server: what is started belongs to the host, not to the connection."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.hosts.host import Host
from midstream.hosts.host_pool import open_host
from midstream.launch.bundle import build_bundle, install_engine
from midstream.launch.environment import Environment
from midstream.launch.start_attempt import Launch, Prepared, start_attempt, stop_attempt, wait_state
from midstream_engine import records
from simulators.sshd import Lab, SshServer
from support.stand_in_engine import write_stand_in

TRAINING = frozenset({records.TRAINING})
PATIENCE = 120.0  # seconds: what another process has to do takes its time on a slow machine


@pytest.fixture
def server(lab: Lab) -> Iterator[SshServer]:
    server = lab.host("gpu1", devices=2)
    yield server
    for launched in server.root.glob("runs/*/attempts/*/launch.json"):
        identity = records.ProcessIdentity.from_json(json.loads(launched.read_text()))
        if records.is_running(identity):
            os.kill(identity.pid, signal.SIGKILL)


@pytest.fixture
def host(server: SshServer) -> Iterator[Host]:
    host = open_host(server.name, server.config)
    host.connect()
    yield host
    host.close()


@pytest.mark.system
def test_the_engine_goes_on_when_the_connection_is_cut(server: SshServer, host: Host, tmp_path: Path) -> None:
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))
    assert install_engine(host, build_bundle(tmp_path / "package" / "midstream_engine")) == engine
    assert sorted(path.name for path in (server.root / "engines").iterdir()) == [".lock", Path(engine.directory).name]
    attempt = start_attempt(
        host,
        server.config,
        Launch("run", "gpu1", config_text="a: 1\n"),
        Prepared(engine, Environment(sys.executable, "the tests' own")),
    )
    before = wait_state(host, "run", attempt.number, TRAINING, PATIENCE)
    assert records.is_running(attempt.process)

    server.drop_connections()
    after = wait_state(host, "run", attempt.number, TRAINING, PATIENCE)  # connects anew by itself
    assert after.identity == before.identity
    deadline = time.monotonic() + PATIENCE
    while wait_state(host, "run", attempt.number, TRAINING, PATIENCE).step <= after.step:
        assert time.monotonic() < deadline

    host.close()
    assert records.is_running(attempt.process)
    host.connect()
    assert stop_attempt(host, "run", attempt.number, PATIENCE).state == records.STOPPED


@pytest.mark.system
def test_a_server_that_is_down_for_a_while_is_waited_for(server: SshServer, host: Host, tmp_path: Path) -> None:
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))
    environment = Environment(sys.executable, "the tests' own")
    attempt = start_attempt(host, server.config, Launch("run", "gpu1", config_text=""), Prepared(engine, environment))
    wait_state(host, "run", attempt.number, TRAINING, PATIENCE)
    server.stop()
    back = threading.Timer(1.5, server.start)
    back.start()
    Path(records.RunPaths(host.root, "run").attempt(attempt.number).dir, "finish").touch()
    assert wait_state(host, "run", attempt.number, {records.FINISHED}, PATIENCE).state == records.FINISHED
    back.join()
