"""New keys during a connection: paramiko requests them after 512 MiB, a server when it likes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import paramiko
import pytest

from midstream.errors import ConnectionLostError
from midstream.hosts.ssh import transport
from midstream.hosts.ssh.ssh_host import SshHost
from simulators.sshd import Lab


def test_commands_end_while_keys_are_exchanged(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a command is read between our request for new keys and the server's part."""
    send: Any = paramiko.Transport.__dict__["_send_kex_init"]
    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    ended, other = machine.open(["cat"]), machine.open(["cat"])
    inner: Any = machine._transport()

    def send_late(this: Any) -> None:
        ended.stdin.close()
        time.sleep(1.0)  # `ended` ends, which this thread reads afterwards
        send(this)

    with monkeypatch.context() as patched:
        patched.setattr(paramiko.Transport, "_send_kex_init", send_late)
        patched.setattr(inner, "clear_to_send_timeout", 5.0)
        inner.packetizer._trigger_rekey()
        assert ended.wait(60) == 0
        other.stdin.write(b"x")
        other.stdin.close()
        assert other.stdout.read() == b"x"
    assert not inner._after_new_keys
    assert machine.run(["echo", "x"]).stdout == b"x\n"
    machine.close()


def test_server_that_stops_while_keys_are_exchanged(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("stopped")
    machine = SshHost("stopped", server.config)
    machine.connect()
    monkeypatch.setattr(transport, "MAX_UNANSWERED", 1)
    process = machine.open(["cat"])
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        inner: Any = machine._transport()
        inner.packetizer._trigger_rekey()
        with pytest.raises(ConnectionLostError):
            process.wait(60)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        machine.close()


def test_write_without_new_keys_breaks_the_connection(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    server = lab.host("stopped")
    machine = SshHost("stopped", server.config)
    machine.connect()
    process = machine.open(["cat"])
    pids = server.sessions()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        inner: Any = machine._transport()
        monkeypatch.setattr(inner, "clear_to_send_timeout", 0.5)
        inner.packetizer._trigger_rekey()
        deadline = time.monotonic() + 60
        while inner.clear_to_send.is_set() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.stdin.write(b"x")
        with pytest.raises(BrokenPipeError):
            process.stdin.flush()
        process.close()
        with pytest.raises(ConnectionLostError):
            machine.run(["true"])
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        machine.close()


def test_many_commands_with_frequent_new_keys(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport.BoundedPacketizer, "REKEY_BYTES", 1 << 16)
    machine = SshHost("gpu1", lab.host("gpu1", devices=1).config)
    machine.connect()
    data = os.urandom(50_000)
    failed: list[BaseException] = []

    def repeat() -> None:
        try:
            for _ in range(12):
                assert machine.run(["cat"], stdin=data).stdout == data
        except BaseException as error:  # noqa: BLE001  raised below
            failed.append(error)

    threads = [threading.Thread(target=repeat) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not failed, failed
    machine.close()
