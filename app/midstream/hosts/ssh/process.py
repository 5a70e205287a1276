"""A command in a channel of an SSH connection, with open pipes."""

from __future__ import annotations

import contextlib
import io
import threading
from typing import Any, BinaryIO, cast

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.message import Message

from midstream.errors import ConnectionLostError
from midstream.hosts.deadline import Deadline
from midstream.hosts.rpc.answer_limits import FORCED, PREAMBLE_LIMIT, too_large
from midstream.hosts.ssh.transport import CHANNEL_TIMEOUT
from midstream.hosts.ssh.untyped_library import untyped

STDERR_TAIL_SIZE = 64 * 1024  # bytes
STDERR_BATCH = 2 << 20  # bytes that are read in one go: endless output must not block the reader
# Printed before each command's output: a login script may have printed before it, even without a newline.
PREAMBLE_END = b"\1midstream\1\n"
PRINT_PREAMBLE_END = "printf '\\001midstream\\001\\n'; "
PREAMBLE_TAIL_SIZE = 512  # bytes
WRITE_TIMEOUT = 300.0  # seconds in which a command reads nothing of its stdin


def connection_lost(host: str, what: str) -> ConnectionLostError:
    """Return the error for a command without an answer, which may have had its effect."""
    return ConnectionLostError(
        f"{host}: lost contact: {what}", "is the host up, and the link to it? then repeat the command"
    )


def send_command(channel: paramiko.Channel, command: str) -> None:
    """Request that the server runs ``command``; `command_started` reads its answer.

    What is written to the command's stdin may follow at once: it saves a round trip. Raises EOFError if the server has
    closed the channel, or the connection is lost.
    """
    request = Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)  # request an answer
    request.add_string(command)
    untyped(channel).before_close(_send_request, channel, request)


def _send_request(channel: Any, request: Message) -> None:
    channel._event_pending()
    if channel.closed:  # before that event, which would not come again
        raise EOFError("the channel is closed")
    channel.transport._send_user_message(request)


def command_started(channel: paramiko.Channel, timeout: float) -> None:
    """Wait for the answer to `send_command`.

    Raises SSHException if the server refuses, or does not answer within ``timeout`` seconds. paramiko's `exec_command`
    has no timeout.
    """
    inner = untyped(channel)
    if not inner.event.wait(timeout):
        raise paramiko.SSHException(f"no answer within {timeout:.0f} s")
    inner._wait_for_event()


class _Reader(io.RawIOBase):
    """A channel's stdout after `PREAMBLE_END`, to the end of command or connection.

    `SshProcess.wait` distinguishes the two.
    """

    def __init__(self, host: str, channel: paramiko.Channel, stderr: _Stderr) -> None:
        self._host, self._channel, self._stderr = host, channel, stderr
        self._ready = threading.Event()
        untyped(channel).in_buffer.set_event(self._ready)
        self._pending = b""  # bytes received together with the end of the preamble
        self.deadline: Deadline | None = None
        self.begun = False
        self.preamble = b""  # the end of the output before the command's own
        self._preamble_size = 0
        self._started = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._started:
            try:
                command_started(self._channel, CHANNEL_TIMEOUT)
            except (paramiko.SSHException, EOFError, OSError) as error:
                raise connection_lost(self._host, "the channel was closed before the command started") from error
            self._started = True
        while not self.begun:
            data = self._receive(1 << 16)
            if not data:
                return 0
            self._find_end(data)
        data = self._pending[: len(buffer)] or self._receive(len(buffer))
        self._pending = self._pending[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _find_end(self, data: bytes) -> None:
        """Look for the end of the preamble, which may arrive in pieces."""
        before, end, after = (self.preamble + data).partition(PREAMBLE_END)
        if end:
            self.begun, self._pending = True, after
            return
        self.preamble = before[-PREAMBLE_TAIL_SIZE:]
        self._preamble_size += len(data)
        if self._preamble_size > PREAMBLE_LIMIT:
            raise too_large(self._host, "its login shell, before any command began,", PREAMBLE_LIMIT, FORCED)

    def _receive(self, size: int) -> bytes:
        step = Deadline(None).step
        while not self._ready.wait(step if self.deadline is None else self.deadline.step):
            self._stderr.read()
            self._check()
        self._check()
        data = self._channel.recv(size)
        self._stderr.read()
        return data

    def _check(self) -> None:
        self._stderr.check()
        if self.deadline is not None and self.deadline.count():
            raise TimeoutError(f"no complete answer within {self.deadline.seconds:.0f} s")


class _Writer(io.RawIOBase):
    """A channel's stdin; closing it sends the end of file."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # One packet at a time: for longer data, paramiko copies the remainder once for each packet.
        try:
            sent = self._channel.send(bytes(data[: self._channel.out_max_packet_size - 64]))
        except EOFError as error:  # the transport was closed during the call
            raise BrokenPipeError("the connection is closed") from error
        except TimeoutError as error:
            raise BrokenPipeError(f"the command reads nothing for {WRITE_TIMEOUT:.0f} s") from error
        if not sent:  # the channel was closed during the call; a buffered writer would retry for ever
            raise BrokenPipeError("the command's stdin is closed")
        return sent

    def close(self) -> None:
        if not self.closed:
            super().close()
            with contextlib.suppress(OSError, EOFError):
                self._channel.shutdown_write()


class _Stderr:
    """A command's stderr, read whenever the command is accessed.

    Unread stderr stays in the channel's window. One thread per command would make up most of the threads of a
    large fleet.
    """

    def __init__(self, host: str, channel: paramiko.Channel) -> None:
        self._host, self._channel = host, channel
        self._tail = b""
        self._size = 0
        self._lock = threading.Lock()
        self.limit = 0  # bytes; 0: none

    def read(self) -> None:
        with self._lock:
            until = self._size + STDERR_BATCH
            while self._size < until and self._channel.recv_stderr_ready():
                data = self._channel.recv_stderr(STDERR_TAIL_SIZE)
                if not data:
                    return
                self._tail = (self._tail + data)[-STDERR_TAIL_SIZE:]
                self._size += len(data)

    def check(self) -> None:
        if self.limit and self._size > self.limit:
            raise too_large(self._host, "a command, on stderr,", self.limit, FORCED)

    def text(self) -> str:
        self.read()
        return self._tail.decode(errors="replace")


class SshProcess:
    """A command in a channel.

    Stdout begins after `PREAMBLE_END`, which the caller's command line prints. The first read waits for the
    server's answer to `send_command`.
    """

    def __init__(self, host: str, channel: paramiko.Channel) -> None:
        self.host, self._channel = host, channel
        channel.settimeout(WRITE_TIMEOUT)  # of writes; reads have `limit_reading`
        self._writer = _Writer(channel)
        self.stdin = cast(BinaryIO, io.BufferedWriter(self._writer, 1 << 16))
        self._stderr = _Stderr(host, channel)
        self._reader = _Reader(host, channel, self._stderr)
        self.stdout = cast(BinaryIO, io.BufferedReader(self._reader, 1 << 18))

    @property
    def begun(self) -> bool:
        """True once the login shell has started the command."""
        return self._reader.begun

    @property
    def preamble(self) -> str:
        """The end of the output before the command's own."""
        return self._reader.preamble.decode(errors="replace")

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._reader.deadline, self._stderr.limit = deadline, stderr

    def wait(self, timeout: float | None = None) -> int:
        deadline = Deadline(timeout)
        while not self._channel.status_event.wait(deadline.step):
            self._stderr.read()
            if deadline.count():
                raise TimeoutError(f"{self.host}: the command still runs after {timeout} s")
        code = self._channel.exit_status
        if code == -1:  # its exit status is unknown, and so is whether it has exited
            active = self._channel.get_transport().is_active()
            what = "the channel was closed without an exit status" if active else "the connection is closed"
            raise connection_lost(self.host, what)
        return code

    def stderr_text(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        self._channel.close()
        self._stderr.read()
        # Not the buffered streams: closing one frees its buffer, and Python lets another thread, which waits for its
        # lock in a flush or a read, use it afterwards.
        self._writer.close()
        self._reader.close()
