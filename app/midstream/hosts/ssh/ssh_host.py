"""A machine behind SSH, through paramiko. One connection a host; every command has a channel of its own."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import paramiko

from midstream.errors import HostError
from midstream.fleet.fleet import SshHost
from midstream.hosts.concurrency_limit import REACHING
from midstream.hosts.host import ANSWER_LIMIT, Completed, Process
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.answer_limits import run_to_end
from midstream.hosts.ssh.channels import Channels
from midstream.hosts.ssh.connection import Connection, open_connection
from midstream.hosts.ssh.process import PRINT_PREAMBLE_END, SshProcess, lost_contact, start_command
from midstream.hosts.ssh.settings import SshSettings, resolve
from midstream.hosts.ssh.transport import CHANNEL_TIMEOUT

CLOSE_TIMEOUT = 0.5

# Where home is, and the first Python that runs our functions: the fleet file's, the PATH's, then what midstream itself
# has brought. A host without one is still watched.
_LOOK_ROUND = """\
cd; pwd
case $2 in
'~') root=$HOME ;;
'~/'*) root=$HOME/${2#'~/'} ;;
*) root=$2 ;;
esac
for each in "$1" python3 python3.13 python3.12 python3.11 python3.10 python3.9 "$root"/pythons/*/bin/python3; do
    case $each in
    '') continue ;;
    '~/'*) each=$HOME/${each#'~/'} ;;
    esac
    if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then command -v "$each"; exit 0; fi
done
echo
"""


class SshMachine:
    """The Host of ``type: ssh``."""

    def __init__(self, name: str, config: SshHost):
        self.name = name
        self.config = config
        self.root = ""
        self.far_python = ""
        self._settings: SshSettings | None = None
        self._connection: Connection | None = None
        self._channels: Channels | None = None
        self._lock = threading.Lock()
        self._dialled = False

    # ------------------------------------------------------------------------------------------ the connection

    def connect(self) -> None:
        with self._lock:
            if self._connection is not None:
                if self._connection.active:
                    return
                self._drop()
            try:
                with REACHING.take():
                    self._connection = self._open()
                    self._channels = Channels(self.name, self._connection, self._open)
                    if not self._dialled:
                        self._look_round()
            except BaseException:
                self._drop()
                raise

    def dial(self) -> SshMachine:
        """A further connection to the same machine, logged in, with the same root and interpreter; whoever asks for it
        closes it. One connection encrypts on one core: a stream that wants more than its share brings its own.
        HostError as from ``connect``."""
        self.connect()
        other = SshMachine(self.name, self.config)
        other.root, other.far_python, other._dialled = self.root, self.far_python, True
        other.connect()
        return other

    def _open(self) -> Connection:
        self._settings = resolve(self.name, self.config)
        return open_connection(self.name, self._settings, self.config.ssh_config)

    @property
    def settings(self) -> SshSettings:
        """Those that it was reached with last."""
        return self._settings or resolve(self.name, self.config)

    def _drop(self) -> None:
        self._connection, channels, self._channels = None, self._channels, None
        if channels is not None:
            channels.close()

    def _look_round(self) -> None:
        """Where home is, and which Python runs our functions."""
        words = ["sh", "-c", _LOOK_ROUND, "sh", self.config.python or "", self.config.root]
        found = self.run(words, timeout=30.0)
        lines = found.stdout.decode(errors="replace").splitlines()
        if len(lines) < 2 or not lines[-2].startswith("/"):
            words = found.stderr.decode(errors="replace").strip()[:200]
            raise HostError(
                f"{self.name}: its shell does not answer as a shell does: {words!r}",
                f"try: ssh {shlex.quote(self.settings.alias)} pwd",
            )
        home, self.far_python = lines[-2:]
        root = self.config.root
        self.root = home + root[1:] if root == "~" or root.startswith("~/") else root
        if not self.root.startswith("/"):
            raise HostError(f"{self.name}: root {root!r} is not absolute", "root: ~/.midstream, or an absolute path")

    def close(self) -> None:
        # Whoever is still connecting holds the lock until the host answers or its time is up: not waited for.
        held = self._lock.acquire(timeout=CLOSE_TIMEOUT)
        try:
            self._drop()
        finally:
            if held:
                self._lock.release()

    # -------------------------------------------------------------------------------------------------- verbs

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        command = PRINT_PREAMBLE_END + _command(argv, env)
        channel = self._session(window)
        try:
            start_command(channel, command, CHANNEL_TIMEOUT)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise lost_contact(self.name, "the channel was closed before the command started") from error
        return SshProcess(self.name, channel)

    def _session(self, window: int | None = None) -> paramiko.Channel:
        channels = self._channels
        if channels is None:
            raise lost_contact(self.name, "the connection is closed")
        return channels.open(window)

    def shell(self) -> paramiko.Channel:
        """A login shell with a terminal around it; `midstream.hosts.shell` connects it to this one."""
        try:
            channel = self._session()
            channel.get_pty(os.environ.get("TERM", "xterm-256color"))
            channel.invoke_shell()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostError(f"{self.name}: no shell: {error}", "PermitTTY yes in its sshd_config") from error
        return channel

    def _transport(self) -> paramiko.Transport:
        connection = self._connection
        if connection is None or not connection.active:
            raise lost_contact(self.name, "the connection is closed")
        return connection.transport

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        process = cast(SshProcess, self.open(argv, env=env))
        try:
            done = run_to_end(process, what or argv[0], stdin, timeout, limit)
        except TimeoutError as error:
            raise lost_contact(self.name, f"{argv[0]} did not end within {timeout:.0f} s") from error
        finally:
            process.close()
        if not process.begun:
            words = " ".join((process.preamble or done.stderr.decode(errors="replace")).split())[-200:]
            raise HostError(
                f"{self.name}: its login shell did not run {argv[0]} (exit {done.returncode}): {words or 'no message'}",
                "it has to be a POSIX shell, with no forced command (command= in authorized_keys)",
            )
        return done

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        return remote_call.call_function(self, self.far_python, function, arguments, timeout)


def _command(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    """One line for the far shell in which nothing is left to expand. ValueError for what no shell can be told."""
    words = list(argv)
    if not words or not words[0] or words[0].startswith("-"):
        raise ValueError(f"{words[:1]} is no command")
    if env:
        for key in env:
            if not key or "=" in key or key.startswith("-"):
                raise ValueError(f"{key!r} is no name of a variable")
        words = ["env", *(f"{key}={value}" for key, value in env.items()), *words]
    if any("\0" in word for word in words):
        raise ValueError("a NUL byte cannot be passed to a command")
    return "exec " + shlex.join(words)
