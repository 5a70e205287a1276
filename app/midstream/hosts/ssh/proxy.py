"""Commands that carry the SSH connection: ProxyCommand, or ssh for a jump host.

paramiko's ProxyCommand does not notice that its command has exited. Here the command has one end of a socket pair, and
paramiko the other.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
from typing import BinaryIO, cast

from midstream.hosts.ssh.settings import SshSettings, parse_address
from midstream.hosts.stderr_tail import StderrTail

SHUTDOWN_TIMEOUT = 2.0  # seconds that the command may take to exit
STDERR_TIMEOUT = 1.0  # seconds that the rest of stderr may take after the exit


class Proxy:
    """A running proxy command. ``sock`` is connected through it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.sock, child_end = socket.socketpair()
        with child_end:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal must not reach it
            )
        self._stderr = StderrTail(cast(BinaryIO, self._child.stderr), "ssh-proxy-stderr")

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


def jump_command(settings: SshSettings) -> str:
    """Return the ssh command for ProxyJump.

    It checks the host keys of the jump hosts strictly, never prompts, and exits when the connection is lost.
    """
    *before, last = settings.jumps
    earlier = ["-J", ",".join(before)] if before else []
    name = settings.hostname
    destination = f"[{name}]:{settings.port}" if ":" in name else f"{name}:{settings.port}"
    strict = ["BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15"]
    keepalive = ["ServerAliveInterval=3", "ServerAliveCountMax=4"]
    options = [word for each in (*strict, *keepalive) for word in ("-o", each)]
    user, host, port = parse_address(last.removeprefix("ssh://").rstrip("/"), "ProxyJump")
    where = [*(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", host]
    return shlex.join(["ssh", *settings.config_words, *options, *earlier, "-W", destination, *where])
