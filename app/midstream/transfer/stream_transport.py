"""Transports for programs that move many bytes, each with its own connection.

One SSH connection encrypts on one core, and paramiko on that of the Python interpreter. If the ``ssh`` program is
installed here it moves the bytes, with the settings that midstream resolved: its pipes belong to the kernel, which can
splice them. If it is not, or cannot log in (it does not have a passphrase that the user entered), a further connection
of paramiko does.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ParamSpec, cast

from midstream.errors import ConnectionLostError, RemoteError
from midstream.fleet.fleet import SshHostConfig
from midstream.fleet.ssh_address import parse_address
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import Host, Process
from midstream.hosts.kubernetes_host import KubernetesHost
from midstream.hosts.local_host import LocalProcess
from midstream.hosts.remote_hosts import is_ssh
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.stores.bucket_host import BucketHost
from midstream.transfer.errors import RESUME_HINT

if TYPE_CHECKING:
    from midstream.hosts.ssh.ssh_host import SshHost


SSH_ERROR = 255  # exit code of ssh when its connection breaks
OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ControlMaster=no", "ControlPath=none",
    "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RemoteCommand=none",
    "RequestTTY=no", "Compression=no", "ConnectTimeout=15", "ServerAliveInterval=3", "ServerAliveCountMax=4",
    "LogLevel=ERROR",
)  # fmt: skip

P = ParamSpec("P")
_no_ssh_program: list[
    SshHostConfig
] = []  # hosts into which the ssh program cannot log in, for the life of this process
_no_ssh_program_lock = threading.Lock()


def start(
    host: Host, program: Callable[P, object], *, window: int | None = None, waiting: Process | None = None
) -> Callable[P, Process]:
    """Return ``program`` as `start_program` does, also for a bucket.

    Errors of libraries are ConnectionLostError.
    """

    def started(*positional: P.args, **named: P.kwargs) -> Process:
        try:
            if isinstance(host, BucketHost):
                return host.start(program, window)(*positional, **named)
            return start_program(host, program, window=window, waiting=waiting)(*positional, **named)
        except (OSError, EOFError) as error:
            raise ConnectionLostError(f"{host.name}: the connection broke", RESUME_HINT) from error

    return started


def start_stream(host: Host, program: Callable[P, object]) -> Callable[P, Process]:
    """Return ``program`` as `start` does, over a connection of its own."""

    def started(*positional: P.args, **named: P.kwargs) -> Process:
        if not is_ssh(host):
            return start(host, program)(*positional, **named)
        return _start_over_ssh(host, lambda on, window: start(on, program, window=window)(*positional, **named))

    return started


def _start_over_ssh(host: SshHost, begin: Callable[[Host, int | None], Process]) -> Process:
    """Start over the ssh program if that can log in, else over a paramiko connection."""
    tried = _ssh_program() is not None and host.config not in _no_ssh_program
    if tried:
        with contextlib.suppress(RemoteError, ConnectionLostError):
            return begin(cast(Host, _SshProgramHost(host)), None)
    connection = host.with_new_connection()
    try:
        from midstream.hosts.ssh.transport import BULK_WINDOW

        process = _WithConnection(begin(connection, BULK_WINDOW), connection)
    except BaseException:
        connection.close()
        raise
    if tried:  # paramiko could log in, the ssh program could not: it is not tried again
        with _no_ssh_program_lock:
            _no_ssh_program.append(host.config)
    return process


def transport_name(host: Host) -> str:
    """Return what `start_stream` uses for the host: pipe, ssh, paramiko or kubectl."""
    if isinstance(host, KubernetesHost):
        return "kubectl"
    if not is_ssh(host):
        return "pipe"
    return "ssh" if _ssh_program() and host.config not in _no_ssh_program else "paramiko"


@functools.cache
def _ssh_program() -> str | None:
    return shutil.which("ssh")


@functools.cache
def fast_ciphers() -> bool:
    """Return whether the processor has AES instructions.

    With them AES-GCM is the fastest cipher by far.
    """
    if platform.system() == "Darwin":
        return True  # every Mac that Python 3.11 runs on has them
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return "aes" in line.split()
    return False


def ssh_argv(config: SshHostConfig, settings: SshSettings, command: str) -> list[str]:
    """Return the ssh command of a host's settings; no prompts, no new host keys."""
    user, alias, port = parse_address(config.address, "address")
    options: list[str] = [*OPTIONS]
    if fast_ciphers():
        options.append("Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com")
    own = []
    if config.identity_file:
        options.append("IdentitiesOnly=yes")
        own = ["-i", os.path.expanduser(config.identity_file)]
    user, port = config.user or user, config.port or port
    return [
        "ssh", "-T", *settings.config_words, *settings.host_key_words,
        *(word for option in options for word in ("-o", option)), *own,
        *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", alias, command,
    ]  # fmt: skip


class _SshProgramHost:
    """The methods of a host that `start_program` uses, by the ssh program."""

    def __init__(self, host: SshHost) -> None:
        self.name, self.root, self.remote_python = host.name, host.root, host.remote_python
        self._host = host

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        del env, window  # the programs of a copy need no variables; ssh has a window of its own
        child = subprocess.Popen(
            ssh_argv(self._host.config, self._host.settings, "exec " + shlex.join(argv)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return _SshChild(self.name, child)

    def __getattr__(self, name: str) -> object:
        return getattr(self._host, name)


class _SshChild(LocalProcess):
    """A command on a host, run by the ssh program."""

    def __init__(self, host: str, child: subprocess.Popen[bytes]) -> None:
        super().__init__(child, host)

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        if code == SSH_ERROR or code < 0:
            raise ConnectionLostError(f"{self.host}: the connection broke", RESUME_HINT)
        return code


class _WithConnection:
    """A program and its own connection, which is closed with it."""

    def __init__(self, process: Process, connection: Host) -> None:
        self._process, self._connection = process, connection
        self.host, self.stdin, self.stdout = process.host, process.stdin, process.stdout

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._process.limit_reading(deadline, stderr)

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def stderr_text(self) -> str:
        return self._process.stderr_text()

    def close(self) -> None:
        try:
            self._process.close()
        finally:
            self._connection.close()
