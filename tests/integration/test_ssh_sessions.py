"""Servers that allow few sessions in a connection: further connections carry what has no room in the first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from midstream.errors import HostError
from midstream.hosts.ssh import channels
from midstream.hosts.ssh.ssh_host import SshMachine
from simulators.sshd import Lab
from support.command_line import midstream


def test_with_one_session_a_host_is_watched_checked_and_called(lab: Lab):
    server = lab.host("narrow", devices=1, sshd="MaxSessions 1\n")
    fleet = lab.fleet_file(narrow=server.config)
    [host] = midstream("--status", "--json", "--fleet", fleet).of("host")
    assert host["link"] == "live", host
    checked = midstream("--check", "narrow", "--json", "--fleet", fleet)
    assert checked.code == 0, checked
    assert checked.result["fail"] == 0


def test_commands_at_once_get_connections_of_their_own(lab: Lab):
    server = lab.host("narrow", devices=1, sshd="MaxSessions 1\n")
    machine = SshMachine("narrow", server.config)
    machine.connect()
    together = threading.Barrier(4)

    def one(number: int) -> bytes:
        process = machine.open(["cat"])
        together.wait(60)  # all four run at once
        process.stdin.write(b"%d" % number)
        process.stdin.close()
        try:
            return process.stdout.read()
        finally:
            process.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [b"0", b"1", b"2", b"3"]
    used = len(server.sessions())
    assert 4 <= used <= 1 + channels.MOST_FURTHER
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: machine.run(["echo", "x"]).stdout, range(12))) == [b"x\n"] * 12
    assert len(server.sessions()) <= 1 + channels.MOST_FURTHER
    machine.close()


def test_more_commands_than_connections_are_refused_by_name(lab: Lab, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(channels, "MOST_FURTHER", 1)
    monkeypatch.setattr(channels, "FREE_TIMEOUT", 0.5)
    machine = SshMachine("narrow", lab.host("narrow", devices=1, sshd="MaxSessions 1\n").config)
    machine.connect()
    running = [machine.open(["cat"]) for _ in range(2)]
    with pytest.raises(HostError, match=r"narrow: its SSH server refuses a channel \(raise MaxSessions of its sshd\)"):
        machine.run(["true"])
    running[0].close()
    assert machine.run(["true"]).returncode == 0
    machine.close()


def test_a_server_without_any_session_is_refused_at_once(lab: Lab):
    machine = SshMachine("none", lab.host("none", devices=1, sshd="MaxSessions 0\n").config)
    with pytest.raises(HostError, match="refuses a channel"):
        machine.connect()
    machine.close()
