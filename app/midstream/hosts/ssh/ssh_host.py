"""A host behind SSH, with paramiko: one connection, a channel for each command."""

from __future__ import annotations

import os
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import paramiko

from midstream.errors import HostError
from midstream.fleet.fleet import SshHostConfig
from midstream.fleet.ssh_address import parse_address
from midstream.hosts.concurrency_limit import CONNECT_LIMIT
from midstream.hosts.host import ANSWER_LIMIT, CALL_TIMEOUT, Completed, P, Process, R
from midstream.hosts.inspection import INSPECT, INSPECT_TIMEOUT
from midstream.hosts.prompter import PROMPTS, TerminalPrompter
from midstream.hosts.rpc import remote_call
from midstream.hosts.rpc.answer_limits import run_to_end
from midstream.hosts.shell import interact, run_shell
from midstream.hosts.ssh.channels import Channels
from midstream.hosts.ssh.config_files import config_words
from midstream.hosts.ssh.connection import Connection, open_connection
from midstream.hosts.ssh.process import PRINT_PREAMBLE_END, SshProcess, connection_lost, send_command
from midstream.hosts.ssh.resolved_options import SshSettings, resolve

CLOSE_TIMEOUT = 0.5  # seconds


class SshHost:
    """The Host of ``type: ssh``."""

    def __init__(self, name: str, config: SshHostConfig) -> None:
        self.name = name
        self.config = config
        self.root = ""
        self.remote_python = ""
        self._settings: SshSettings | None = None
        self._connection: Connection | None = None
        self._channels: Channels | None = None
        self._lock = threading.Lock()
        self._closings = 0  # calls of `close`
        self._is_additional = False

    # ------------------------------------------------------------------------------------------ the connection

    def connect(self) -> None:
        closings = self._closings
        with self._lock:
            if self._connection is not None:
                if self._connection.active:
                    return
                self._drop()
            try:
                with CONNECT_LIMIT.slot():
                    self._check_open(closings)
                    connection = self._open()
                    self._connection, self._channels = connection, Channels(self.name, connection, self._open)
                    if not self._is_additional:
                        self._inspect()
                self._check_open(closings)
            except BaseException:
                self._drop()
                raise

    def _check_open(self, closings: int) -> None:
        """Raise ConnectionLostError if the host was closed while it was being connected."""
        if self._closings != closings:
            raise connection_lost(self.name, "it was closed")

    def with_new_connection(self) -> SshHost:
        """Return the same host over a further connection, which the caller closes.

        One connection encrypts on one core: a stream that needs more bandwidth uses its own connection.

        Raises:
            HostError: As from ``connect``.
        """
        self.connect()
        other = SshHost(self.name, self.config)
        other.root, other.remote_python, other._is_additional = self.root, self.remote_python, True
        other.connect()
        return other

    def _open(self) -> Connection:
        self._settings = resolve(self.name, self.config)
        return open_connection(self.name, self._settings, self.config.ssh_config)

    @property
    def settings(self) -> SshSettings:
        """The settings of the last connection."""
        return self._settings or resolve(self.name, self.config)

    def _drop(self) -> None:
        self._connection, channels, self._channels = None, self._channels, None
        if channels is not None:
            channels.close()

    def _inspect(self) -> None:
        """Find the home directory and the Python that runs `midstream_host`."""
        words = ["sh", "-c", INSPECT, "sh", self.config.python or "", self.config.root]
        done = self.run(words, timeout=INSPECT_TIMEOUT)
        lines = done.stdout.decode(errors="replace").splitlines()
        if len(lines) < 2 or not lines[-2].startswith("/"):
            words = done.stderr.decode(errors="replace").strip()[:200]
            raise HostError(
                f"{self.name}: its login shell is no POSIX shell: {words!r}",
                f"try: ssh {shlex.quote(self.settings.alias)} pwd",
            )
        home, self.remote_python = lines[-2:]
        root = self.config.root
        self.root = home + root[1:] if root == "~" or root.startswith("~/") else root
        if not self.root.startswith("/"):
            raise HostError(f"{self.name}: root {root!r} is not absolute", "root: ~/.midstream, or an absolute path")

    def close(self) -> None:
        # A thread that is still connecting has the lock until its timeout: do not wait for it. It sees the count.
        self._closings += 1
        acquired = self._lock.acquire(timeout=CLOSE_TIMEOUT)
        try:
            self._drop()
        finally:
            if acquired:
                self._lock.release()

    # -------------------------------------------------------------------------------------------------- verbs

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, window: int | None = None) -> Process:
        command = PRINT_PREAMBLE_END + _command(argv, env)
        channel = self._session(window)
        try:
            send_command(channel, command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            channel.close()
            raise connection_lost(self.name, "the channel was closed before the command started") from error
        return SshProcess(self.name, channel)

    def _session(self, window: int | None = None) -> paramiko.Channel:
        channels = self._channels
        if channels is None:
            raise connection_lost(self.name, "the connection is closed")
        return channels.open(window)

    def _shell(self) -> paramiko.Channel:
        """Open a login shell with a terminal."""
        try:
            channel = self._session()
            channel.get_pty(os.environ.get("TERM", "xterm-256color"))
            channel.invoke_shell()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostError(f"{self.name}: no shell: {error}", "PermitTTY yes in its sshd_config") from error
        return channel

    def open_shell(self) -> int:
        """Run a shell on the host in this terminal, and return its exit code.

        The ``ssh`` program runs it, with the settings and keys that midstream itself uses. Without such a program, it
        runs in a channel of midstream's own connection.
        """
        if shutil.which("ssh"):
            settings = resolve(self.name, self.config)
            words = ["ssh", "-t", *settings.config_words, *settings.host_key_words, "-l", settings.user]
            words += ["-p", str(settings.port), "-o", "StrictHostKeyChecking=yes"]
            if self.config.identity_file:
                words += ["-o", "IdentitiesOnly=yes", "-i", settings.identity_files[0]]
            return run_shell([*words, "--", settings.alias])
        with PROMPTS.use(TerminalPrompter()):  # the terminal UI has released the terminal
            self.connect()
        try:
            return interact(self._shell())
        finally:
            self.close()

    def shell_line(self, command: str) -> str:
        """Return a line of the ssh program that runs a command on the host.

        ``command`` is a line of shell. The program reads the user's configuration; only what the fleet file overrides
        is added.
        """
        config = self.config
        user, alias, port = parse_address(config.address, f"hosts.{self.name}.address")
        user, port = config.user or user, config.port or port
        words = ["ssh", *config_words(config.ssh_config)]
        words += ["-l", user] if user else []
        words += ["-p", str(port)] if port else []
        if config.known_hosts:
            path = os.path.expanduser(config.known_hosts)
            words += ["-o", f'UserKnownHostsFile="{path}"' if " " in path else f"UserKnownHostsFile={path}"]
        if config.identity_file:
            words += ["-o", "IdentitiesOnly=yes", "-i", os.path.expanduser(config.identity_file)]
        return shlex.join([*words, alias, command])

    @property
    def peer_address(self) -> str:
        """The address that the connection goes to.

        Empty if a proxy or a jump host is between, or if there is no connection.
        """
        connection = self._connection
        return connection.peer_address if connection is not None else ""

    def ping(self) -> None:
        """Wait for one answer of the SSH server; start no program.

        Raises:
            ConnectionLostError: The server does not answer.
        """
        transport = self._transport()
        try:
            transport.global_request("keepalive@openssh.com", wait=True)
        except (OSError, EOFError) as error:
            raise connection_lost(self.name, str(error)) from error
        if not transport.is_active():  # without an answer, paramiko raises nothing
            raise connection_lost(self.name, "the connection is closed")

    def _transport(self) -> paramiko.Transport:
        connection = self._connection
        if connection is None or not connection.active:
            raise connection_lost(self.name, "the connection is closed")
        return connection.transport

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = CALL_TIMEOUT,
        limit: int = ANSWER_LIMIT,
        what: str = "",
    ) -> Completed:
        process = cast(SshProcess, self.open(argv, env=env))
        try:
            done = run_to_end(process, what or argv[0], stdin, timeout, limit)
        except TimeoutError as error:
            raise connection_lost(self.name, f"{argv[0]} did not end within {timeout:.0f} s") from error
        finally:
            process.close()
        if not process.begun:
            words = " ".join((process.preamble or done.stderr.decode(errors="replace")).split())[-200:]
            raise HostError(
                f"{self.name}: its login shell did not run {argv[0]} (exit {done.returncode}): {words or 'no message'}",
                "it has to be a POSIX shell, with no forced command (command= in authorized_keys)",
            )
        return done

    def call(self, function: Callable[P, R], /, *, timeout: float | None = CALL_TIMEOUT) -> Callable[P, R]:
        return remote_call.caller(self, function, timeout)


def _command(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    """Return one quoted line for the host's shell.

    Raises:
        ValueError: An argument is one that no shell accepts.
    """
    words = list(argv)
    if not words or not words[0] or words[0].startswith("-"):
        raise ValueError(f"{words[:1]} is not a command")
    if env:
        for key in env:
            if not key or "=" in key or key.startswith("-"):
                raise ValueError(f"{key!r} is not a variable name")
        words = ["env", *(f"{key}={value}" for key, value in env.items()), *words]
    if any("\0" in word for word in words):
        raise ValueError("a NUL byte cannot be passed to a command")
    return "exec " + shlex.join(words)
