"""A real SSH server that stops, closes idle channels, or is behind a link that forwards nothing: contact is lost."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from midstream.errors import LostContact
from midstream.hosts.rpc import remote_call
from midstream.hosts.ssh.ssh_host import SshMachine
from simulators.link import Link, through
from simulators.sshd import Lab, sshd_version

IDLE = 3  # seconds: more than the pause between two signs of life, and less than the call below takes


def connected(lab: Lab, name: str, sshd: str = "") -> SshMachine:
    machine = SshMachine(name, lab.host(name, sshd=sshd).config)
    machine.connect()
    return machine


@pytest.mark.skipif(sshd_version() < (9, 2), reason="ChannelTimeout came with OpenSSH 9.2")
def test_a_server_that_closes_idle_channels_does_not_end_a_long_call(lab: Lab):
    machine = connected(lab, "idle", f"ChannelTimeout session:*={IDLE}s\n")
    try:
        with pytest.raises(LostContact, match="closed without an exit status"):
            machine.run(["sleep", str(3 * IDLE)])
        # It waits for an answer that does not come, and says nothing meanwhile.
        found = machine.call(
            "runs.standby_state.heard", root=machine.root, run_id="r", attempt=1, serial=1, patience=1.0
        )
        assert found["heard"], "nobody lives there"
        assert (
            machine.call("machine.network.see_tokens", root=machine.root, names=["00" * 8], patience=3.0 * IDLE) == []
        )
    finally:
        machine.close()


def test_a_server_that_is_stopped_is_lost_contact_and_a_call_goes_on_once_it_runs(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
):
    server = lab.host("stopped")
    machine = SshMachine("stopped", server.config)
    machine.connect()
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    connect = machine.connect

    def go_on() -> None:  # the server runs again as soon as somebody connects anew
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        connect()

    monkeypatch.setattr(machine, "connect", go_on)
    try:
        assert machine.call("runs.run_state.list_runs", root=machine.root) == []
    finally:
        machine.close()


def test_a_link_that_forwards_nothing_is_lost_contact(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    server = lab.host("frozen")
    link = Link(server.port)
    machine = SshMachine("frozen", through(server, link.port).config)
    machine.connect()
    monkeypatch.setattr(remote_call, "TRIES", 1)
    link.freeze()
    try:
        with pytest.raises(LostContact) as lost:
            machine.call("runs.run_state.list_runs", root=machine.root)
        assert "MaxSessions" not in str(lost.value)
        thawing = threading.Timer(0.1, link.thaw)
        thawing.start()
        machine.connect()
        assert machine.call("runs.run_state.list_runs", root=machine.root) == []
    finally:
        machine.close()
        link.close()
