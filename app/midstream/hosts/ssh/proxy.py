"""A command that carries the SSH connection: ProxyCommand, or OpenSSH's own way over a jump host.

paramiko's ProxyCommand never notices that its command has ended. Here the command talks to one end of a socket pair,
and paramiko to the other, as to any socket.
"""

from __future__ import annotations

import io
import shlex
import socket
import subprocess
from typing import cast

from midstream.hosts.ssh.settings import SshSettings, parse_address
from midstream.hosts.stderr_tail import StderrTail

ENDING = 2.0  # seconds that the command may take to end by itself


class Proxy:
    """The command, running. ``sock`` leads through it."""

    def __init__(self, command: str):
        self.command = command
        self.sock, far_end = socket.socketpair()
        with far_end:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=far_end.fileno(),
                stdout=far_end.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C at the terminal is for the program in it alone
            )
        stderr = cast(io.BufferedReader, self._child.stderr)
        self._stderr = StderrTail(lambda: stderr.read1(8192), "ssh-proxy-stderr")

    def last_words(self) -> str:
        """Why it ended; empty while it runs."""
        try:
            code = self._child.wait(ENDING)
        except subprocess.TimeoutExpired:
            return ""
        self._stderr.join(1.0)
        lines = [line.strip() for line in self._stderr.text().splitlines() if line.strip()]
        # ssh closes with what it lost; what came before says why.
        telling = [
            line for line in lines if not line.startswith(("Connection closed by", "kex_exchange_identification"))
        ]
        return (telling or lines or [f"the proxy command ended with {code}"])[-1]

    def close(self) -> None:
        """End it. Idempotent."""
        self.sock.close()
        try:
            self._child.wait(ENDING)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._stderr.join(1.0)
        cast(io.BufferedReader, self._child.stderr).close()


def jump_command(settings: SshSettings) -> str:
    """ProxyJump as the command that does it: OpenSSH's own, which checks the host keys on the way as strictly as we do,
    never asks, and ends when the way is cut."""
    *before, last = settings.jumps
    through = ["-J", ",".join(before)] if before else []
    name = settings.hostname
    destination = f"[{name}]:{settings.port}" if ":" in name else f"{name}:{settings.port}"
    quiet = ["BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=15"]
    alive = ["ServerAliveInterval=3", "ServerAliveCountMax=4"]
    options = [word for each in (*quiet, *alive) for word in ("-o", each)]
    user, host, port = parse_address(last.removeprefix("ssh://").rstrip("/"), "ProxyJump")
    where = [*(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", host]
    return shlex.join(["ssh", *settings.config_words, *options, *through, "-W", destination, *where])
