"""A real SSH server that stops, closes idle channels, or is behind a frozen link."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import pytest

from midstream.errors import ConnectionLostError
from midstream.hosts.rpc import remote_call
from midstream.hosts.ssh.ssh_host import SshHost
from midstream_host.machine import network
from midstream_host.runs import run_state, standby_state
from simulators.link import Link, through
from simulators.sshd import Lab, sshd_version

IDLE = 3  # seconds: more than the interval of reports, less than the duration of the call below


def connected(lab: Lab, name: str, sshd: str = "") -> SshHost:
    machine = SshHost(name, lab.host(name, sshd=sshd).config)
    machine.connect()
    return machine


@pytest.mark.skipif(sshd_version() < (9, 2), reason="ChannelTimeout came with OpenSSH 9.2")
def test_long_call_survives_idle_channel_timeout(lab: Lab) -> None:
    machine = connected(lab, "idle", f"ChannelTimeout session:*={IDLE}s\n")
    try:
        with pytest.raises(ConnectionLostError, match="closed without an exit status"):
            machine.run(["sleep", str(3 * IDLE)])
        # The call waits for an answer of an engine that does not run, and prints nothing during this time.
        found = machine.call(standby_state.await_answer)(
            root=machine.root, run_id="r", attempt=1, sequence=1, patience=1.0
        )
        assert found.answered, "no engine runs there"
        assert machine.call(network.find_tokens)(root=machine.root, names=["00" * 8], patience=3.0 * IDLE) == []
    finally:
        machine.close()


def test_call_continues_after_server_was_stopped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("stopped")
    machine = SshHost("stopped", server.config)
    machine.connect()
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    connect = machine.connect

    def resume() -> None:  # the server runs again at the next connection
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        connect()

    monkeypatch.setattr(machine, "connect", resume)
    try:
        assert machine.call(run_state.list_runs)(root=machine.root) == []
    finally:
        machine.close()


def test_frozen_link_is_reported_and_reconnects(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("frozen")
    link = Link(server.port)
    machine = SshHost("frozen", through(server, link.port).config)
    machine.connect()
    monkeypatch.setattr(remote_call, "CALL", replace(remote_call.CALL, tries=0))
    link.freeze()
    try:
        with pytest.raises(ConnectionLostError) as lost:
            machine.call(run_state.list_runs)(root=machine.root)
        assert "MaxSessions" not in str(lost.value)
        thawing = threading.Timer(0.1, link.thaw)
        thawing.start()
        machine.connect()
        assert machine.call(run_state.list_runs)(root=machine.root) == []
    finally:
        machine.close()
        link.close()
