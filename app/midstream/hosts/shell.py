"""A shell on a host, in the terminal that this program runs in.

The ``ssh`` program is the best there is for that; it gets the settings that midstream itself uses, so it comes to the
same door with the same keys. Where there is none, a channel of our own connection with a terminal in it.
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
from typing import Any

from midstream.errors import HostError
from midstream.fleet.fleet import HostConfig, SshHost


def shell_command(name: str, config: HostConfig) -> list[str] | None:
    """The program that is a shell on the host; None where it takes our own connection."""
    if not isinstance(config, SshHost):
        return [os.environ.get("SHELL") or "/bin/sh"]
    if not shutil.which("ssh"):
        return None
    from midstream.hosts.ssh.settings import resolve

    settings = resolve(name, config)
    words = ["ssh", "-t", *settings.config_words, "-l", settings.user, "-p", str(settings.port)]
    words += ["-o", "StrictHostKeyChecking=yes"]
    if config.known_hosts:
        words += ["-o", f"UserKnownHostsFile={_quoted(settings.known_hosts[0])}"]
    if config.identity_file:
        words += ["-o", "IdentitiesOnly=yes", "-i", settings.identity_files[0]]
    return [*words, "--", settings.alias]


def _quoted(path: str) -> str:
    """As ssh_config reads a path with spaces."""
    return f'"{path}"' if " " in path else path


def open_shell(name: str, config: HostConfig) -> int:
    """Give the terminal to a shell on the host until it ends: its exit code. HostError where that is not reached."""
    command = shell_command(name, config)
    if command is not None:
        return subprocess.run(command, check=False, env=_environment(os.environ)).returncode
    from midstream.hosts.prompter import PROMPTS, TerminalPrompter
    from midstream.hosts.ssh.ssh_host import SshMachine

    assert isinstance(config, SshHost)
    machine = SshMachine(name, config)
    with PROMPTS.of(TerminalPrompter()):  # whatever screen there was has stepped aside
        machine.connect()
    try:
        return _interact(machine.shell())
    finally:
        machine.close()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {"TERM": "xterm-256color", **environ}


def _interact(channel: Any) -> int:
    """The terminal's keys to the channel, what it says to the screen."""
    keys, screen = sys.stdin.fileno(), sys.stdout.fileno()
    channel.settimeout(0.0)
    with _raw(keys), _resizing(channel, screen):
        while True:
            ready, _, _ = select.select([channel, keys], [], [])
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
                channel.sendall(typed)
                channel.settimeout(0.0)
    code = channel.recv_exit_status()
    channel.close()
    return code if code >= 0 else 255


def _write(screen: int, data: bytes) -> None:
    while data:
        data = data[os.write(screen, data) :]


@contextlib.contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes through as it is pressed."""
    try:
        before = termios.tcgetattr(terminal)
    except termios.error as error:
        raise HostError("a shell needs a terminal", "stdin is none") from error
    try:
        tty.setraw(terminal, termios.TCSADRAIN)  # what was typed already is for the shell
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _resizing(channel: Any, screen: int) -> Iterator[None]:
    """The far terminal is as large as this one."""

    def resize(*_: object) -> None:
        columns, rows = terminal_size(screen)
        channel.resize_pty(columns, rows)

    resize()
    before = signal.signal(signal.SIGWINCH, resize)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)


def terminal_size(screen: int) -> tuple[int, int]:
    """(columns, rows)."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(screen, termios.TIOCGWINSZ, b"\0" * 8))
    return columns or 80, rows or 24
