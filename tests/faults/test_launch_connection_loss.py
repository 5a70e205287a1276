"""Engines launched over SSH do not depend on the connection."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from midstream.fleet.fleet import Fleet
from midstream.hosts.host_pool import HostPool
from midstream.install.bundle import build_bundle, install_engine
from midstream.install.environment import Environment
from midstream.launch.attempt_monitor import stop_run
from midstream.launch.start_attempt import Launch, Prepared, start_attempt
from midstream_core import records
from simulators.sshd import SshServer
from support.engines.attempt_states import wait_state
from support.engines.stand_in_engine import write_stand_in
from support.launched_processes import kill_launched

PATIENCE = 120.0  # seconds: what another process has to do takes its time on a slow machine


@pytest.fixture
def server(server: SshServer) -> Iterator[SshServer]:
    """Kill the server's engines after the test."""
    yield server
    kill_launched(server.root)


@pytest.fixture
def hosts(server: SshServer) -> Iterator[HostPool]:
    pool = HostPool(Fleet({server.name: server.config}))
    yield pool
    pool.close()


@pytest.mark.system
def test_engine_survives_cut_connection(server: SshServer, hosts: HostPool, tmp_path: Path) -> None:
    host = hosts.get(server.name)
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))
    assert install_engine(host, build_bundle(tmp_path / "package")) == engine
    assert sorted(path.name for path in (server.root / "engines").iterdir()) == [".lock", Path(engine.directory).name]
    attempt = start_attempt(
        host,
        server.config,
        Launch("run", "gpu1", config_text="a: 1\n"),
        Prepared(engine, Environment(sys.executable, "the tests' own")),
    )
    before = wait_state(hosts, host.name, "run", attempt.number, timeout=PATIENCE)
    assert records.is_running(attempt.process)

    server.drop_connections()
    after = wait_state(hosts, host.name, "run", attempt.number, timeout=PATIENCE)  # it reconnects
    assert after.identity == before.identity
    deadline = time.monotonic() + PATIENCE
    while wait_state(hosts, host.name, "run", attempt.number, timeout=PATIENCE).step <= after.step:
        assert time.monotonic() < deadline

    host.close()
    assert records.is_running(attempt.process)
    host.connect()
    assert stop_run(hosts, host.name, "run", attempt.number, PATIENCE).state == records.STOPPED


@pytest.mark.system
def test_wait_ranks_survives_server_restart(server: SshServer, hosts: HostPool, tmp_path: Path) -> None:
    host = hosts.get(server.name)
    engine = install_engine(host, build_bundle(write_stand_in(tmp_path / "package")))
    environment = Environment(sys.executable, "the tests' own")
    attempt = start_attempt(host, server.config, Launch("run", "gpu1", config_text=""), Prepared(engine, environment))
    wait_state(hosts, host.name, "run", attempt.number, timeout=PATIENCE)
    server.stop()
    back = threading.Timer(1.5, server.start)
    back.start()
    Path(records.RunPaths(host.root, "run").attempt(attempt.number).dir, "finish").touch()
    assert wait_state(hosts, host.name, "run", attempt.number, {records.FINISHED}, PATIENCE).state == records.FINISHED
    back.join()
