"""Programs on a host that move many bytes: each over a connection of its own.

One SSH connection encrypts on one core, and paramiko does it in Python's. Where the ``ssh`` program is here it carries
the bytes, with the settings that we resolved ourselves: its pipes are real ones, which the kernel can join. Where it is
not, or cannot log in (a passphrase that was said to us is not known to it), a further connection of paramiko's does.
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
from collections.abc import Mapping, Sequence
from typing import Any, cast

from midstream.errors import LostContact, RemoteError
from midstream.fleet.fleet import SshHost
from midstream.hosts.deadline import Deadline
from midstream.hosts.host import Host, Process
from midstream.hosts.local_host import LocalProcess
from midstream.hosts.rpc.remote_call import start_program
from midstream.hosts.ssh.settings import SshSettings, parse_address
from midstream.hosts.ssh.ssh_host import SshMachine
from midstream.hosts.ssh.transport import BULK_WINDOW
from midstream.stores.bucket_host import BucketHost

LOST = 255  # what ssh ends with where the connection does
OPTIONS = (
    "BatchMode=yes", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "ControlMaster=no", "ControlPath=none",
    "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no", "PermitLocalCommand=no", "RemoteCommand=none",
    "RequestTTY=no", "Compression=no", "ConnectTimeout=15", "ServerAliveInterval=3", "ServerAliveCountMax=4",
    "LogLevel=ERROR",
)  # fmt: skip

_refused: list[SshHost] = []  # hosts that the ssh program does not get into, while this process lives
_refusing = threading.Lock()


def start(host: Host, function: str, arguments: Mapping[str, Any], *, window: int | None = None) -> Process:
    """`start_program`; a connection that breaks meanwhile is LostContact, whatever a library calls it."""
    if isinstance(host, BucketHost):
        function, arguments = host.translated(function, arguments)
    try:
        return start_program(host, function, arguments, window=window)
    except (OSError, EOFError) as error:
        raise LostContact(f"{host.name}: the connection is gone", "run the same copy again to go on") from error


def start_stream(host: Host, function: str, arguments: Mapping[str, Any]) -> Process:
    """Start ``midstream.remote.<function>`` on the host over a connection that nobody else uses. Errors as of
    `start_program`."""
    if not isinstance(host, SshMachine):
        return start(host, function, arguments)
    tried = _ssh_program() is not None and host.config not in _refused
    if tried:
        with contextlib.suppress(RemoteError, LostContact):
            return start(cast(Host, _BySsh(host)), function, arguments)
    connection = host.dial()
    try:
        process = _WithConnection(start(connection, function, arguments, window=BULK_WINDOW), connection)
    except BaseException:
        connection.close()
        raise
    if tried:  # where paramiko gets in and the ssh program does not, it is not asked again
        with _refusing:
            _refused.append(host.config)
    return process


def transport(host: Host) -> str:
    """What `start_stream` uses for the host, in a word: for plans and reports."""
    if not isinstance(host, SshMachine):
        return "pipe"
    return "ssh" if _ssh_program() and host.config not in _refused else "paramiko"


@functools.cache
def _ssh_program() -> str | None:
    return shutil.which("ssh")


@functools.cache
def fast_ciphers() -> bool:
    """Whether this machine's processor has AES instructions: then AES-GCM is the fastest cipher by far."""
    if platform.machine() in ("arm64", "aarch64") and platform.system() == "Darwin":
        return True
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith(("flags", "Features")):
                return "aes" in line.split()
    return False


def ssh_argv(config: SshHost, settings: SshSettings, command: str) -> list[str]:
    """The ssh program with the settings that were resolved for a host. Nothing is asked, nothing is trusted anew."""
    user, alias, port = parse_address(config.address, "address")
    options: list[str] = [*OPTIONS]
    if fast_ciphers():
        options.append("Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com")
    if config.known_hosts:
        options.append("UserKnownHostsFile=" + " ".join(_quoted(each) for each in settings.known_hosts))
    own = []
    if config.identity_file:
        options.append("IdentitiesOnly=yes")
        own = ["-i", os.path.expanduser(config.identity_file)]
    user, port = config.user or user, config.port or port
    return [
        "ssh", "-T", *settings.config_words, *(word for each in options for word in ("-o", each)), *own,
        *(["-l", user] if user else []), *(["-p", str(port)] if port else []), "--", alias, command,
    ]  # fmt: skip


def _quoted(path: str) -> str:
    return f'"{path}"' if " " in path else path


class _BySsh:
    """What `start_program` needs of a host, through the ssh program."""

    def __init__(self, host: SshMachine):
        self.name, self.root, self.far_python = host.name, host.root, host.far_python
        self._host = host

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        child = subprocess.Popen(
            ssh_argv(self._host.config, self._host.settings, "exec " + shlex.join(argv)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return _SshChild(self.name, child)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)


class _SshChild(LocalProcess):
    """A command on a host, behind the ssh program."""

    def __init__(self, host: str, child: subprocess.Popen[bytes]):
        super().__init__(child, host)

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        if code == LOST or code < 0:
            raise LostContact(f"{self.host}: the connection is gone", "run the same copy again to go on")
        return code


class _WithConnection:
    """A program, and the connection that it alone uses."""

    def __init__(self, process: Process, connection: Host):
        self._process, self._connection = process, connection
        self.host, self.stdin, self.stdout = process.host, process.stdin, process.stdout

    def limit_reading(self, deadline: Deadline | None, stderr: int = 0) -> None:
        self._process.limit_reading(deadline, stderr)

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def stderr_text(self) -> str:
        return self._process.stderr_text()

    def close(self) -> None:
        self._process.close()
        self._connection.close()
