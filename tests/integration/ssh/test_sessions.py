"""Sessions of one connection: concurrent, few, or closed by the server at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import paramiko
import pytest
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_DATA, MSG_CHANNEL_EOF, MSG_CHANNEL_REQUEST

from midstream.errors import ConnectionLostError, HostError
from midstream.hosts.ssh import channels
from midstream.hosts.ssh.process import send_command
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


@pytest.mark.parametrize("kind", [MSG_CHANNEL_EOF, MSG_CHANNEL_DATA])
def test_command_that_ends_first_keeps_the_connection(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """Its stdin is written or closed while its CLOSE arrives: a message after ours would be an error of protocol."""
    send: Any = paramiko.Transport.__dict__["_send_user_message"]
    late = 0

    def send_late(transport: Any, message: Any) -> None:
        nonlocal late
        if message.asbytes()[0] == kind:
            may_end.touch()
            deadline = time.monotonic() + 60
            while transport._channels.values() and time.monotonic() < deadline:
                time.sleep(0.01)
            late += not transport._channels.values()
        send(transport, message)

    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    may_end = tmp_path / "may_end"
    ended = machine.open(["sh", "-c", f"until [ -e {may_end} ]; do sleep 0.01; done"])
    with monkeypatch.context() as patched, contextlib.suppress(BrokenPipeError):
        patched.setattr(paramiko.Transport, "_send_user_message", send_late)
        if kind == MSG_CHANNEL_DATA:
            ended.stdin.write(b"x")
        ended.stdin.close()
    assert late == 1
    assert ended.wait(60) == 0
    machine.ping()  # the server has handled all messages
    assert machine.run(["echo", "x"]).stdout == b"x\n"
    machine.close()


@pytest.mark.parametrize("early", [True, False])
def test_lost_connection_with_an_exit_status_is_lost(lab: Lab, early: bool) -> None:
    """The exit status comes first where a process that the command has left still writes."""
    server = lab.host("gpu1", devices=1)
    machine = SshHost("gpu1", server.config)
    machine.connect()
    process = machine.open(["sh", "-c", "(sleep 60; echo late) & echo early"])
    if early:
        assert process.wait(60) == 0
    assert process.stdout.readline() == b"early\n"
    for pid in server.sessions():
        os.kill(pid, signal.SIGKILL)
    assert process.stdout.read() == b""
    with pytest.raises(ConnectionLostError):
        process.wait(60)
    with pytest.raises(ConnectionLostError):
        machine.ping()
    machine.close()


def test_output_before_a_lost_connection_is_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is lost when the window is adjusted for data that were read."""
    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    process = machine.open(["head", "-c", "1000000", "/dev/zero"])
    assert process.wait(60) == 0

    def fail(*_: object) -> None:
        raise EOFError

    with monkeypatch.context() as patched:
        patched.setattr(paramiko.Transport, "_send_user_message", fail)
        assert len(process.stdout.read()) == 1_000_000
    machine.close()


def test_channel_that_ends_before_its_command(lab: Lab) -> None:
    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    channel = machine._session()
    channel.close()
    with pytest.raises(EOFError):
        send_command(channel, "true")
    assert machine.run(["echo", "x"]).stdout == b"x\n"
    machine.close()


def test_new_connection_has_a_session_for_its_command(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands wait for a session when a connection for one more is opened."""
    machine = SshHost("narrow", lab.host("narrow", devices=1, sshd="MaxSessions 1\n").config)
    machine.connect()
    busy = machine.open(["cat"])
    inner: Any = machine._channels
    used: list[paramiko.Channel] = []

    def take(transport: paramiko.Transport) -> None:
        with contextlib.suppress(paramiko.SSHException):  # refused: the command has the session
            used.append(transport.open_session(timeout=60))

    class Shared(list[Any]):
        def append(self, item: Any, /) -> None:
            super().append(item)
            taker = threading.Thread(target=take, args=(item.transport,))
            taker.start()  # as a command that waits
            taker.join(1.0)

    inner._extra = Shared()
    monkeypatch.setattr(type(inner), "_active", lambda self: list(self._extra))
    assert machine.run(["echo", "x"]).stdout == b"x\n"
    busy.close()
    machine.close()


def test_host_closed_while_it_connects_stays_closed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("slow", devices=1)
    machine = SshHost("slow", server.config)
    inspect = machine._inspect
    connecting, go_on = threading.Event(), threading.Event()

    def slowly() -> None:
        inspect()
        connecting.set()
        assert go_on.wait(60)

    monkeypatch.setattr(machine, "_inspect", slowly)
    lost: list[bool] = []

    def connect() -> None:
        try:
            machine.connect()
        except ConnectionLostError:
            lost.append(True)

    threads = [threading.Thread(target=connect) for _ in range(2)]  # the second one waits for the first
    for each in threads:
        each.start()
    assert connecting.wait(60)
    machine.close()
    go_on.set()
    for each in threads:
        each.join(60)
    assert lost == [True, True]
    assert machine._connection is None
    deadline = time.monotonic() + 60
    while server.sessions() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not server.sessions()
    machine.connect()
    machine.close()


def test_session_that_opens_too_late_is_closed(lab: Lab) -> None:
    server = lab.host("narrow", devices=1, sshd="MaxSessions 1\n")
    machine = SshHost("narrow", server.config)
    machine.connect()
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    transport = machine._transport()
    with pytest.raises(paramiko.SSHException, match="Timeout"):
        transport.open_session(timeout=0.2)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    for _ in range(3):
        machine.ping()  # the server has closed the session
    assert machine.run(["echo", "x"]).stdout == b"x\n"
    assert len(server.sessions()) == len(pids), "the command has the first connection"
    machine.close()


def test_connection_that_breaks_when_a_command_is_sent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    send: Any = paramiko.Transport.__dict__["_send_message"]

    def fail(transport: Any, message: Any) -> None:
        if message.asbytes()[0] in (MSG_CHANNEL_REQUEST, MSG_CHANNEL_EOF, MSG_CHANNEL_CLOSE):
            raise EOFError
        send(transport, message)

    with monkeypatch.context() as patched:
        patched.setattr(paramiko.Transport, "_send_message", fail)
        with pytest.raises(ConnectionLostError):
            machine.open(["true"])
    machine.close()
