"""Interactive shell on a host, in the terminal of this program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from midstream.errors import HostError

if TYPE_CHECKING:
    import paramiko


def run_shell(command: Sequence[str]) -> int:
    """Run the command of a shell in this terminal, and return its exit code."""
    return subprocess.run(command, check=False, env={"TERM": "xterm-256color", **os.environ}).returncode


def interact(channel: paramiko.Channel) -> int:
    """Copy keys to the channel and its output to the screen, until it ends."""
    keys, screen = sys.stdin.fileno(), sys.stdout.fileno()
    channel.settimeout(0.0)
    with _raw(keys), _resizing() as resized:
        _resize(channel, screen)
        while True:
            ready, _, _ = select.select([channel, keys, resized], [], [])
            if resized in ready:
                os.read(resized, 4096)
                _resize(channel, screen)
            if channel in ready:
                data = channel.recv(1 << 16)
                if not data:
                    break
                _write(screen, data)
            if keys in ready:
                typed = os.read(keys, 4096)
                if not typed:
                    channel.shutdown_write()
                    break
                channel.settimeout(None)
                with contextlib.suppress(OSError, EOFError):  # it has ended, which its output shows
                    channel.sendall(typed)
                channel.settimeout(0.0)
    code = channel.recv_exit_status()
    channel.close()
    return code if code >= 0 else 255


def _resize(channel: paramiko.Channel, screen: int) -> None:
    """Give the remote terminal the size of this one."""
    import paramiko

    with contextlib.suppress(paramiko.SSHException, EOFError, OSError):  # it has ended, or the connection
        channel.resize_pty(*terminal_size(screen))


def _write(screen: int, data: bytes) -> None:
    while data:
        data = data[os.write(screen, data) :]


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Context with the terminal in raw mode."""
    try:
        before = termios.tcgetattr(terminal)
    except termios.error as error:
        raise HostError("a shell needs a terminal", "stdin is none") from error
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # pending input belongs to the shell
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing() -> Iterator[int]:
    """Context with a descriptor that can be read once the terminal was resized.

    The signal may arrive while this thread has a lock of the channel: its handler must not use the channel.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def notify(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):  # full of earlier ones
            os.write(writing, b"\0")

    before = signal.signal(signal.SIGWINCH, notify)
    try:
        yield reading
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)


def terminal_size(screen: int) -> tuple[int, int]:
    """Return (columns, rows) of a terminal."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(screen, termios.TIOCGWINSZ, b"\0" * 8))
    return columns or 80, rows or 24
