"""Interactive shell on a host, in the terminal of this program.

The ``ssh`` program runs it, with the settings and keys that midstream itself uses. Without such a program, the shell
runs in a channel of midstream's own connection.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from midstream.errors import HostError
from midstream.fleet.fleet import HostConfig, KubernetesHostConfig, SshHostConfig

if TYPE_CHECKING:
    import paramiko


def shell_command(name: str, config: HostConfig) -> list[str] | None:
    """Return the command of a shell on the host, or None.

    None: the shell needs midstream's own connection.
    """
    if isinstance(config, KubernetesHostConfig):
        from midstream.hosts.shell_line import pod_line

        return [
            "sh",
            "-c",
            pod_line(config, ["sh", "-c", "command -v bash >/dev/null && exec bash -l; exec sh -i"], "-it"),
        ]
    if not isinstance(config, SshHostConfig):
        return [os.environ.get("SHELL") or "/bin/sh"]
    if not shutil.which("ssh"):
        return None
    from midstream.hosts.ssh.resolved_options import resolve

    settings = resolve(name, config)
    words = ["ssh", "-t", *settings.config_words, *settings.host_key_words, "-l", settings.user]
    words += ["-p", str(settings.port), "-o", "StrictHostKeyChecking=yes"]
    if config.identity_file:
        words += ["-o", "IdentitiesOnly=yes", "-i", settings.identity_files[0]]
    return [*words, "--", settings.alias]


def open_shell(name: str, config: HostConfig) -> int:
    """Run a shell on the host in this terminal, and return its exit code.

    Raises:
        HostError: The host cannot be reached.
    """
    command = shell_command(name, config)
    if command is not None:
        return subprocess.run(command, check=False, env=_environment(os.environ)).returncode
    from midstream.hosts.prompter import PROMPTS, TerminalPrompter
    from midstream.hosts.ssh.ssh_host import SshHost

    assert isinstance(config, SshHostConfig)
    machine = SshHost(name, config)
    with PROMPTS.use(TerminalPrompter()):  # the terminal UI has released the terminal
        machine.connect()
    try:
        return _interact(machine.shell())
    finally:
        machine.close()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {"TERM": "xterm-256color", **environ}


def _interact(channel: paramiko.Channel) -> int:
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
