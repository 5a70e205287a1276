"""Commands that carry the SSH connection: ProxyCommand, or ssh for a jump host.

paramiko's ProxyCommand does not notice that its command has exited. Here the command has one end of a socket pair, and
paramiko the other.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from typing import BinaryIO, cast

from midstream.fleet.ssh_address import parse_address
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.hosts.stderr_tail import StderrTail

SHUTDOWN_TIMEOUT = 2.0  # seconds that the command may take to exit
STDERR_TIMEOUT = 1.0  # seconds that the rest of stderr may take after the exit


class Proxy:
    """A running proxy command. ``sock`` is connected through it."""

    def __init__(self, command: str, *, passes_socket: bool = False, timeout: float | None = None) -> None:
        """Start the command in the user's shell, as ssh does.

        With ``passes_socket`` (ProxyUseFdpass) it sends a connected socket over its stdout within ``timeout`` seconds.
        """
        self.command = command
        self.sock, child_end = socket.socketpair()
        with child_end:
            self._child = subprocess.Popen(
                [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal must not reach it
            )
        self._stderr = StderrTail(cast(BinaryIO, self._child.stderr), "ssh-proxy-stderr")
        if passes_socket:
            with self.sock as channel:
                self.sock = _received_socket(channel, timeout) or channel.dup()

    def exit_message(self) -> str:
        """Return why it has exited, empty while it runs."""
        try:
            code = self._child.wait(SHUTDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:
            return ""
        self._stderr.join(STDERR_TIMEOUT)
        lines = [line.strip() for line in self._stderr.text().splitlines() if line.strip()]
        # ssh's last lines report the lost connection; the lines before have the reason.
        reasons = [
            line for line in lines if not line.startswith(("Connection closed by", "kex_exchange_identification"))
        ]
        return (reasons or lines or [f"the proxy command exited with {code}"])[-1]

    def close(self) -> None:
        """End the command. Idempotent."""
        self.sock.close()
        try:
            self._child.wait(SHUTDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stderr.close(STDERR_TIMEOUT)


def _received_socket(channel: socket.socket, timeout: float | None) -> socket.socket | None:
    """Return the socket that the command passes; None if it passes none."""
    channel.settimeout(timeout)
    try:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    except OSError:  # too late, or the command has exited: the login reports it
        return None
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def jump_command(settings: SshSettings, hop: SshSettings) -> str:
    """Return the ssh command for ProxyJump, whose last host is ``hop``.

    The command checks the host keys of the jump hosts strictly, never prompts, and exits when the connection is lost.
    """
    *before, last = settings.jumps
    earlier = ["-J", ",".join(before)] if before else []
    name = settings.hostname
    destination = f"[{name}]:{settings.port}" if ":" in name else f"{name}:{settings.port}"
    strict = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={hop.connect_timeout:.0f}"]
    keepalive = ["ServerAliveInterval=3", "ServerAliveCountMax=4"]
    options = [word for option in (*strict, *keepalive) for word in ("-o", option)]
    user, host, port = parse_address(last, "ProxyJump")
    where = [*(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", host]
    return shlex.join(
        ["ssh", *settings.config_words, *hop.host_key_words, *options, *earlier, "-W", destination, *where]
    )
