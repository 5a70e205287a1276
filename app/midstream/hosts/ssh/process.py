"""A command in a channel of an SSH connection, with its pipes."""

from __future__ import annotations

import contextlib
import io
import threading
from typing import Any, BinaryIO, cast

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST
from paramiko.message import Message

from midstream.errors import LostContact
from midstream.hosts.deadline import Deadline
from midstream.hosts.rpc.answer_limits import FORCED, PREAMBLE_LIMIT, too_large

STDERR_KEPT = 64 * 1024  # bytes
STDERR_AT_ONCE = 2 << 20  # bytes: output without end must not hold up whoever reads it
# What is printed before each command: a login script may have printed before it, even without a line's end.
PREAMBLE_END = b"\1midstream\1\n"
PRINT_PREAMBLE_END = "printf '\\001midstream\\001\\n'; "
PREAMBLE_KEPT = 512  # bytes
WRITE_TIMEOUT = 300.0  # seconds in which nothing of a command's stdin is taken


def lost_contact(host: str, what: str) -> LostContact:
    """The error for a command of which nothing more is heard. It says nothing of what the host has done."""
    return LostContact(f"{host}: lost contact: {what}", "is the host up, and the link to it? then run the same again")


def start_command(channel: paramiko.Channel, command: str, timeout: float) -> None:
    """Have the server run ``command``. SSHException where it refuses, or does not answer within ``timeout`` seconds:
    paramiko's own `exec_command` waits for ever."""
    request = Message()
    request.add_byte(cMSG_CHANNEL_REQUEST)
    request.add_int(channel.remote_chanid)
    request.add_string("exec")
    request.add_boolean(True)  # wants an answer
    request.add_string(command)
    inner = cast(Any, channel)
    inner._event_pending()
    inner.transport._send_user_message(request)
    if not inner.event.wait(timeout):
        raise paramiko.SSHException(f"no answer within {timeout:.0f} s")
    inner._wait_for_event()


class _Reader(io.RawIOBase):
    """A channel's stdout after `PREAMBLE_END`. The end of the stream is the end of the command, or of the connection:
    `wait` tells which."""

    def __init__(self, host: str, channel: paramiko.Channel, aside: _Stderr):
        self._host, self._channel, self._aside = host, channel, aside
        self._ready = threading.Event()
        cast(Any, channel).in_buffer.set_event(self._ready)
        self._waiting = b""  # what came together with the end of the preamble
        self.deadline: Deadline | None = None
        self.begun = False
        self.preamble = b""  # the end of what came before the command's own output
        self._preamble_size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self.begun:
            data = self._receive(1 << 16)
            if not data:
                return 0
            self._find_end(data)
        data = self._waiting[: len(buffer)] or self._receive(len(buffer))
        self._waiting = self._waiting[len(buffer) :]
        buffer[: len(data)] = data
        return len(data)

    def _find_end(self, data: bytes) -> None:
        """Look for the end of the preamble, which may come in pieces."""
        before, found, after = (self.preamble + data).partition(PREAMBLE_END)
        if found:
            self.begun, self._waiting = True, after
            return
        self.preamble = before[-PREAMBLE_KEPT:]
        self._preamble_size += len(data)
        if self._preamble_size > PREAMBLE_LIMIT:
            raise too_large(self._host, "its login shell, before any command began,", PREAMBLE_LIMIT, FORCED)

    def _receive(self, size: int) -> bytes:
        step = Deadline(None).step
        while not self._ready.wait(step if self.deadline is None else self.deadline.step):
            self._aside.take()
            self._check()
        self._check()
        try:
            data = self._channel.recv(size)
        except EOFError:  # the connection broke as the window was being enlarged: `wait` says so
            return b""
        self._aside.take()
        return data

    def _check(self) -> None:
        self._aside.check()
        if self.deadline is not None and self.deadline.count():
            raise TimeoutError(f"nothing that was complete came within {self.deadline.seconds:.0f} s")


class _Writer(io.RawIOBase):
    """A channel's stdin; closing it is the end of file over there."""

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # One packet at a time: paramiko copies the whole remainder of a longer one for each packet that it cuts off.
        try:
            sent = self._channel.send(bytes(data[: self._channel.out_max_packet_size - 64]))
        except EOFError as error:  # what paramiko raises where the transport dies meanwhile
            raise BrokenPipeError("the connection is closed") from error
        except TimeoutError as error:
            raise BrokenPipeError(f"the command reads nothing for {WRITE_TIMEOUT:.0f} s") from error
        if not sent:  # the channel was closed while this waited; a buffer above would try for ever
            raise BrokenPipeError("the command's stdin is closed")
        return sent

    def close(self) -> None:
        if not self.closed:
            super().close()
            with contextlib.suppress(OSError, EOFError):
                self._channel.shutdown_write()


class _Stderr:
    """What a command says aside. Taken whenever somebody looks at the command: a thread for each would be most of the
    threads of a fleet. What nobody takes waits in the channel's window."""

    def __init__(self, host: str, channel: paramiko.Channel):
        self._host, self._channel = host, channel
        self._kept = b""
        self._size = 0
        self._lock = threading.Lock()
        self.limit = 0  # bytes; 0: none

    def take(self) -> None:
        with self._lock:
            until = self._size + STDERR_AT_ONCE
            while self._size < until and self._channel.recv_stderr_ready():
                try:
                    data = self._channel.recv_stderr(STDERR_KEPT)
                except EOFError:  # as in `_Reader`
                    return
                if not data:
                    return
                self._kept = (self._kept + data)[-STDERR_KEPT:]
                self._size += len(data)

    def check(self) -> None:
        if self.limit and self._size > self.limit:
            raise too_large(self._host, "a command, on stderr,", self.limit, FORCED)

    def text(self) -> str:
        self.take()
        return self._kept.decode(errors="replace")


class SshProcess:
    """A command in a channel. Its stdout begins after `PREAMBLE_END`, which has to be printed before it."""

    def __init__(self, host: str, channel: paramiko.Channel):
        self.host, self._channel = host, channel
        channel.settimeout(WRITE_TIMEOUT)  # of reads, `limit_reading`
        self.stdin = cast(BinaryIO, io.BufferedWriter(_Writer(channel), 1 << 16))
        self._stderr = _Stderr(host, channel)
        self._reader = _Reader(host, channel, self._stderr)
        self.stdout = cast(BinaryIO, io.BufferedReader(self._reader, 1 << 18))

    @property
    def begun(self) -> bool:
        """Whether the login shell came to the command."""
        return self._reader.begun

    @property
    def preamble(self) -> str:
        """The end of what was printed before the command."""
        return self._reader.preamble.decode(errors="replace")

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._reader.deadline, self._stderr.limit = deadline, stderr

    def wait(self, timeout: float | None = None) -> int:
        deadline = Deadline(timeout)
        while not self._channel.status_event.wait(deadline.step):
            self._stderr.take()
            if deadline.count():
                raise TimeoutError(f"{self.host}: the command still runs after {timeout} s")
        code = self._channel.exit_status
        if code == -1:  # nobody knows how it ended, or whether it did
            transport = self._channel.get_transport()
            active = transport is not None and transport.is_active()
            what = "the channel was closed without an exit status" if active else "the connection is closed"
            raise lost_contact(self.host, what)
        return code

    def stderr_text(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the transport may be dying at this moment
            self._channel.close()
        self._stderr.take()
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(OSError, ValueError, EOFError):  # nothing can be flushed into a closed channel
                stream.close()
