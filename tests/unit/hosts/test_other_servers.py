"""Servers that end a command in other ways than OpenSSH."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED, cMSG_CHANNEL_CLOSE, cMSG_CHANNEL_EOF
from paramiko.message import Message

from midstream.errors import ConnectionLostError
from midstream.hosts import shell
from midstream.hosts.ssh.process import PREAMBLE_END, SshProcess, send_command
from midstream.hosts.ssh.transport import MAX_UNANSWERED, Transport


class Server(paramiko.ServerInterface):
    """Accepts any user and any command."""

    def __init__(self) -> None:
        self.started = threading.Event()

    def check_auth_none(self, username: str) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self.started.set()
        return True

    def check_channel_pty_request(
        self, channel: Any, term: Any, width: Any, height: Any, pixelwidth: Any, pixelheight: Any, modes: Any
    ) -> bool:
        return True


class Connection:
    """A client of this project and the server's side of its connection."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.server, self.interface = paramiko.Transport(theirs), Server()
        self.server.add_server_key(paramiko.ECDSAKey.generate())
        self.server.start_server(event=threading.Event(), server=self.interface)
        self.client = Transport(ours)
        self.client.start_client(timeout=60)
        self.client.auth_none("me")

    def start(self) -> tuple[SshProcess, paramiko.Channel]:
        """Start a command. Returns it, and the server's channel."""
        channel = self.client.open_session(timeout=60)
        send_command(channel, "command")
        theirs = self.server.accept(60)
        assert theirs is not None
        assert self.interface.started.wait(60)
        return SshProcess("host", channel), theirs

    def send(self, theirs: paramiko.Channel, kind: bytes) -> None:
        """Send EOF or CLOSE alone. paramiko's own server sends EOF before CLOSE."""
        message = Message()
        message.add_byte(kind)
        message.add_int(theirs.remote_chanid)
        inner: Any = self.server
        inner._send_user_message(message)


@pytest.fixture
def connection() -> Iterator[Connection]:
    made = Connection()
    yield made
    made.client.close()
    made.server.close()


@pytest.mark.parametrize(
    "ends",
    [(cMSG_CHANNEL_CLOSE,), (cMSG_CHANNEL_EOF, cMSG_CHANNEL_CLOSE), (cMSG_CHANNEL_EOF,)],
    ids=["without EOF", "with EOF", "without CLOSE"],
)
def test_command_ends_in_the_way_of_any_server(connection: Connection, ends: tuple[bytes, ...]) -> None:
    """The exit status holds although the connection ends afterwards."""
    process, theirs = connection.start()
    theirs.sendall(PREAMBLE_END + b"output")
    theirs.send_exit_status(3)
    for kind in ends:
        connection.send(theirs, kind)
    assert process.stdout.read() == b"output"
    connection.server.close()
    connection.client.join(60)
    assert process.wait(60) == 3
    process.close()


def test_exit_status_after_the_end_of_output(connection: Connection) -> None:
    process, theirs = connection.start()
    connection.send(theirs, cMSG_CHANNEL_EOF)
    assert process.stdout.read() == b""
    theirs.send_exit_status(3)
    connection.send(theirs, cMSG_CHANNEL_CLOSE)
    assert process.wait(60) == 3
    process.close()


def test_end_without_an_exit_status_is_lost_contact(connection: Connection) -> None:
    """As of a command that a signal ended, on some servers."""
    process, theirs = connection.start()
    connection.send(theirs, cMSG_CHANNEL_CLOSE)
    with pytest.raises(ConnectionLostError, match="closed without an exit status"):
        process.wait(60)
    process.close()


def test_closed_command_keeps_its_buffers(connection: Connection) -> None:
    """Closing a buffered stream frees its buffer; another thread that waits for its lock would use it afterwards."""
    process, _ = connection.start()
    process.stdin.write(b"not flushed")
    sizes = [sys.getsizeof(stream) for stream in (process.stdin, process.stdout)]
    assert min(sizes) >= 1 << 16, "a size without the buffer"
    process.close()
    assert (process.stdin.closed, process.stdout.closed) == (True, True)
    assert [sys.getsizeof(stream) for stream in (process.stdin, process.stdout)] == sizes


@pytest.mark.parametrize("answer", [True, False])
def test_any_answer_to_a_keepalive_counts(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    requested: list[str] = []

    def check(kind: str, message: Message) -> bool:
        requested.append(kind)
        return answer

    monkeypatch.setattr(connection.interface, "check_global_request", check)
    inner: Any = connection.client
    for number in range(2 * MAX_UNANSWERED):
        inner._keepalive()
        end = time.monotonic() + 60
        while inner._unanswered and time.monotonic() < end:
            time.sleep(0.01)
        assert (inner._unanswered, len(requested)) == (0, number + 1)
    assert connection.client.is_active()


@pytest.mark.parametrize("error", [EOFError, OSError])
def test_resize_of_a_lost_shell_is_no_error(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, error: Callable[[], BaseException]
) -> None:
    channel = connection.client.open_session(timeout=60)
    channel.get_pty()
    ours, screen = os.openpty()

    def fail(*_: object) -> None:
        raise error()

    try:
        with monkeypatch.context() as patched:
            patched.setattr(paramiko.Transport, "_send_message", fail)
            shell._resize(channel, screen)
    finally:
        os.close(ours)
        os.close(screen)
