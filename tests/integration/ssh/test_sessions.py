"""Servers that allow few sessions per connection."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from midstream.errors import HostError
from midstream.hosts.ssh import channels
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import Lab
from support.command_line import midstream


def test_host_with_one_session_is_watched_and_checked(lab: Lab) -> None:
    server = lab.host("narrow", devices=1, sshd="MaxSessions 1\n")
    fleet = lab.fleet_file(narrow=server.config)
    [host] = midstream("--status", "--json", "--fleet", fleet).of("host")
    assert host["link"] == "live", host
    checked = midstream("--check", "narrow", "--json", "--fleet", fleet)
    assert checked.code == 0, checked
    assert checked.result["fail"] == 0


def test_concurrent_commands_get_own_connections(lab: Lab) -> None:
    server = lab.host("narrow", devices=1, sshd="MaxSessions 1\n")
    machine = SshHost("narrow", server.config)
    machine.connect()
    barrier = threading.Barrier(4)

    def one(number: int) -> bytes:
        process = machine.open(["cat"])
        barrier.wait(60)  # all four run at the same time
        process.stdin.write(b"%d" % number)
        process.stdin.close()
        try:
            return process.stdout.read()
        finally:
            process.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [b"0", b"1", b"2", b"3"]
    used = len(server.sessions())
    assert 4 <= used <= 1 + channels.MAX_EXTRA_CONNECTIONS
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: machine.run(["echo", "x"]).stdout, range(12))) == [b"x\n"] * 12
    assert len(server.sessions()) <= 1 + channels.MAX_EXTRA_CONNECTIONS
    machine.close()


def test_too_many_commands_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_EXTRA_CONNECTIONS", 1)
    monkeypatch.setattr(channels, "SESSION_TIMEOUT", 0.5)
    machine = SshHost("narrow", lab.host("narrow", devices=1, sshd="MaxSessions 1\n").config)
    machine.connect()
    running = [machine.open(["cat"]) for _ in range(2)]
    with pytest.raises(HostError, match=r"narrow: its SSH server refuses a channel \(raise MaxSessions of its sshd\)"):
        machine.run(["true"])
    running[0].close()
    monkeypatch.setattr(channels, "SESSION_TIMEOUT", 60.0)  # the server may take its time to end a session
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_server_without_sessions_is_refused(lab: Lab) -> None:
    machine = SshHost("none", lab.host("none", devices=1, sshd="MaxSessions 0\n").config)
    with pytest.raises(HostError, match="refuses a channel"):
        machine.connect()
    machine.close()
