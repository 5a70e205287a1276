"""A command in a channel of an SSH connection, with its pipes."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from typing import Any, BinaryIO, cast

import paramiko

from midstream.errors import LostContact

STDERR_KEPT = 64 * 1024  # bytes
LOOK = 1.0  # seconds between two looks at stderr while a command is waited for


class _Reader(io.RawIOBase):
    """A channel's stdout. The end of the stream is the end of the command, or of the connection: `wait` tells which."""

    def __init__(self, channel: paramiko.Channel, aside: _Stderr):
        self._channel, self._aside = channel, aside

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._channel.recv(len(buffer))
        self._aside.take()
        buffer[: len(data)] = data
        return len(data)


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
            raise BrokenPipeError("the connection is gone") from error
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
    threads of a fleet. What nobody takes waits in the channel's window, which is far larger than any complaint."""

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel
        self._kept = b""
        self._lock = threading.Lock()

    def take(self) -> None:
        with self._lock:
            while self._channel.recv_stderr_ready():
                data = self._channel.recv_stderr(STDERR_KEPT)
                if not data:
                    return
                self._kept = (self._kept + data)[-STDERR_KEPT:]

    def text(self) -> str:
        self.take()
        return self._kept.decode(errors="replace")


class SshProcess:
    """A command in a channel."""

    def __init__(self, host: str, channel: paramiko.Channel):
        self._host, self._channel = host, channel
        self.stdin = cast(BinaryIO, io.BufferedWriter(_Writer(channel), 1 << 16))
        self._stderr = _Stderr(channel)
        self.stdout = cast(BinaryIO, io.BufferedReader(_Reader(channel, self._stderr), 1 << 18))

    def read_all(self, timeout: float | None) -> bytes:
        """stdout to its end; TimeoutError where it takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        chunks = []
        try:
            while True:
                self._channel.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
                data = self._channel.recv(1 << 18)
                if not data:
                    return b"".join(chunks)
                chunks.append(data)
                self._stderr.take()
        finally:
            self._channel.settimeout(None)

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = LOOK if deadline is None else min(LOOK, deadline - time.monotonic())
            if self._channel.status_event.wait(max(0.0, left)):
                break
            self._stderr.take()
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self._host}: the command still runs after {timeout} s")
        code = self._channel.exit_status
        if code == -1:
            transport = self._channel.get_transport()
            if transport is None or not transport.is_active():
                raise LostContact(f"{self._host}: the connection is gone", "it is made anew at the next try")
            return 255  # ended by a signal, or without a word
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
