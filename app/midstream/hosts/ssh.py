"""A machine behind SSH, through paramiko. One connection a host; every command has a channel of its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shlex
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, cast

import paramiko

from midstream.errors import HostError, LostContact
from midstream.fleet.config import SshHost
from midstream.hosts import far
from midstream.hosts.base import Completed, Process
from midstream.hosts.ssh_proxy import Proxy
from midstream.hosts.ssh_settings import SshSettings, resolve
from midstream.hosts.stderr import StderrTail

CONNECT_TIMEOUT = 15.0  # seconds for each of: TCP, banner, authentication
CHANNEL_TIMEOUT = 15.0
CLOSE_TIMEOUT = 0.5
WINDOW = 64 << 20  # bytes: paramiko's own 2 MiB allow 40 MB/s at 50 ms
KEEPALIVE = 3  # seconds. Neither keep-alives nor TCP_USER_TIMEOUT alone notice a dead link soon; both together do
USER_TIMEOUT = 10_000  # milliseconds that sent bytes may stay unacknowledged
# AES-GCM first: on hosts with AES instructions it is the fastest by far.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

# paramiko logs what it also raises, with tracebacks, through a logger that falls back to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False

_LOOK_ROUND = """\
cd; pwd
for each in "$@" python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
    case $each in
    '') continue ;;
    '~/'*) each=$HOME/${each#'~/'} ;;
    esac
    if "$each" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then command -v "$each"; exit 0; fi
done
echo
"""


class _Refuse(paramiko.MissingHostKeyPolicy):
    """Nobody is trusted on first contact: the person is told which key was shown and how to accept it."""

    def __init__(self, name: str, settings: SshSettings):
        self._name, self._settings = name, settings

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        settings = self._settings
        raise HostError(
            f"{self._name}: host key of {settings.known_as} is not known ({key.get_name()} {key.fingerprint})",
            f"compare the fingerprint, then: {_keyscan(settings)}",
        )


def _keyscan(settings: SshSettings) -> str:
    port = [] if settings.port == 22 else ["-p", str(settings.port)]
    return f"{shlex.join(['ssh-keyscan', *port, settings.hostname])} >> {shlex.quote(settings.known_hosts[0])}"


class SshMachine:
    """The Host of ``type: ssh``."""

    def __init__(self, name: str, config: SshHost):
        self.name = name
        self.config = config
        self.root = ""
        self.far_python = ""
        self._client: paramiko.SSHClient | None = None
        self._proxy: Proxy | None = None
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------ the connection

    def connect(self) -> None:
        with self._lock:
            if self._client is not None:
                transport = self._client.get_transport()
                if transport is not None and transport.is_active():
                    return
                self._drop()
            try:
                self._client = self._open()
                self._look_round()
            except BaseException:
                self._drop()
                raise

    def _drop(self) -> None:
        """Let the connection go, and what carried it."""
        client, self._client = self._client, None
        proxy, self._proxy = self._proxy, None
        if client is not None:
            client.close()
        if proxy is not None:
            proxy.close()

    def _open(self) -> paramiko.SSHClient:
        settings = resolve(self.name, self.config)
        client = paramiko.SSHClient()
        for file in settings.known_hosts:
            with contextlib.suppress(FileNotFoundError):
                client.load_host_keys(file)
        client.set_missing_host_key_policy(_Refuse(self.name, settings))
        sock = self._socket(settings)
        try:
            client.connect(
                # With port 22 paramiko looks the key up under this very name.
                settings.known_as,
                port=22,
                sock=sock,
                username=settings.user,
                key_filename=cast(Any, [each for each in settings.identity_files if os.path.isfile(each)] or None),
                look_for_keys=not settings.identity_files,
                allow_agent=not settings.identities_only,
                timeout=CONNECT_TIMEOUT,
                banner_timeout=CONNECT_TIMEOUT,
                auth_timeout=CONNECT_TIMEOUT,
                channel_timeout=CHANNEL_TIMEOUT,
                transport_factory=_transport,
            )
        except paramiko.BadHostKeyException as error:
            client.close()
            raise HostError(
                f"{self.name}: host key of {settings.known_as} has CHANGED (it shows {error.key.get_name()} "
                f"{error.key.fingerprint}): another machine may be answering",
                f"only if you know why: ssh-keygen -R {shlex.quote(settings.known_as)} "
                f"-f {shlex.quote(settings.known_hosts[0])}, then {_keyscan(settings)}",
            ) from error
        except paramiko.PasswordRequiredException as error:
            client.close()
            raise HostError(
                f"{self.name}: the key file has a passphrase", "ssh-add FILE hands it to the agent"
            ) from error
        except paramiko.AuthenticationException as error:
            client.close()
            tried = ", ".join(settings.identity_files) or "the default keys"
            agent = "" if settings.identities_only else " and the agent's"
            raise HostError(
                f"{self.name}: {settings.address} accepts none of our keys (tried {tried}{agent})",
                f"ssh-copy-id, or identity_file: in the fleet file; ssh -v {shlex.quote(settings.hostname)} tells more",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            words = self._proxy.last_words() if self._proxy else ""
            client.close()
            raise HostError(
                f"{self.name}: no SSH session with {settings.address}: {words or str(error) or type(error).__name__}",
                f"try: {settings.proxy_command}" if words else "is it an SSH server?",
            ) from error
        transport = client.get_transport()
        assert transport is not None
        transport.set_keepalive(KEEPALIVE)
        return client

    def _socket(self, settings: SshSettings) -> Any:
        if settings.proxy_command:
            self._proxy = Proxy(settings.proxy_command)
            return self._proxy.sock
        try:
            sock = socket.create_connection((settings.hostname, settings.port), CONNECT_TIMEOUT)
        except socket.gaierror as error:
            raise HostError(
                f"{self.name}: {settings.hostname} is not known ({error.strerror})", "mend address: in the fleet file"
            ) from error
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise HostError(
                f"{self.name}: {settings.hostname}:{settings.port} cannot be reached: {why}",
                "is the machine up, and its SSH port open to this one?",
            ) from error
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT)
        return sock

    def _look_round(self) -> None:
        """Where home is, and which Python runs our functions."""
        found = self.run(["sh", "-c", _LOOK_ROUND, "sh", self.config.python or ""], timeout=30.0)
        lines = found.stdout.decode(errors="replace").splitlines()
        if len(lines) < 2 or not lines[-2].startswith("/"):
            words = found.stderr.decode(errors="replace").strip()[:200]
            raise HostError(
                f"{self.name}: its shell does not answer as a shell does: {words!r}",
                "a login script that prints is the usual cause",
            )
        home, python = lines[-2:]
        if not python:
            raise HostError(f"{self.name}: no Python 3.8 or newer there", "install python3, or name one with `python:`")
        root = self.config.root
        self.root = home + root[1:] if root == "~" or root.startswith("~/") else root
        if not self.root.startswith("/"):
            raise HostError(f"{self.name}: root {root!r} is not absolute", "root: ~/.midstream, or an absolute path")
        self.far_python = python

    def close(self) -> None:
        # Whoever is still connecting holds the lock until the host answers or its time is up: not waited for.
        held = self._lock.acquire(timeout=CLOSE_TIMEOUT)
        try:
            self._drop()
        finally:
            if held:
                self._lock.release()

    # -------------------------------------------------------------------------------------------------- verbs

    def open(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        client = self._client
        transport = client.get_transport() if client is not None else None
        if transport is None or not transport.is_active():
            raise LostContact(f"{self.name}: the connection is gone", "it is made anew at the next try")
        try:
            channel = transport.open_session(timeout=CHANNEL_TIMEOUT)
            channel.exec_command(_command(argv, env))
        except (paramiko.SSHException, EOFError, OSError) as error:
            if transport.is_active():
                raise HostError(f"{self.name}: no channel: {error}", "raise MaxSessions of its sshd") from error
            raise LostContact(f"{self.name}: the connection is gone", "it is made anew at the next try") from error
        return SshProcess(self.name, channel)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        timeout: float | None = 60.0,
    ) -> Completed:
        process = cast(SshProcess, self.open(argv, env=env))
        try:
            feeder = threading.Thread(target=_feed, args=(process.stdin, stdin), name="ssh-stdin", daemon=True)
            feeder.start()
            stdout = process.read_all(timeout)
            code = process.wait(timeout)
            feeder.join(CHANNEL_TIMEOUT)
            return Completed(code, stdout, process.stderr_text().encode())
        except TimeoutError as error:
            raise HostError(f"{self.name}: {argv[0]} did not end within {timeout:.0f} s") from error
        finally:
            process.close()

    def call(self, function: str, /, *, timeout: float | None = 60.0, **arguments: Any) -> Any:
        return far.call_function(self, self.far_python, function, arguments, timeout)


def _transport(sock: Any, **options: Any) -> paramiko.Transport:
    transport = paramiko.Transport(sock, default_window_size=WINDOW, **options)
    security = transport.get_security_options()
    security.ciphers = (*CIPHERS, *(each for each in security.ciphers if each not in CIPHERS))
    return transport


def _command(argv: Sequence[str], env: Mapping[str, str] | None) -> str:
    """One line for the far shell in which nothing is left to expand. ValueError for what no shell can be told."""
    words = list(argv)
    if not words or not words[0] or words[0].startswith("-"):
        raise ValueError(f"{words[:1]} is no command")
    if env:
        words = ["env", *(f"{key}={value}" for key, value in env.items()), *words]
    if any("\0" in word for word in words):
        raise ValueError("a NUL byte cannot be passed to a command")
    return "exec " + shlex.join(words)


def _feed(stdin: BinaryIO, data: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):  # it ended without reading everything: its exit code tells
        stdin.write(data)
        stdin.close()


# ------------------------------------------------------------------------------------------------------ channels


class _Reader(io.RawIOBase):
    """A channel's stdout. The end of the stream is the end of the command, or of the connection: `wait` tells which."""

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._channel.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Writer(io.RawIOBase):
    """A channel's stdin; closing it is the end of file over there."""

    def __init__(self, channel: paramiko.Channel):
        self._channel = channel

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        # One packet at a time: paramiko copies the whole remainder of a longer one for each packet that it cuts off.
        try:
            sent = self._channel.send(bytes(data[: self._channel.out_max_packet_size - 64]))
        except EOFError as error:  # what paramiko raises where the transport dies meanwhile
            raise BrokenPipeError("the connection is gone") from error
        if not sent:  # the channel was closed while this waited; a buffer above would try for ever
            raise BrokenPipeError("the command's stdin is closed")
        return sent

    def close(self) -> None:
        if not self.closed:
            super().close()
            with contextlib.suppress(OSError, EOFError):
                self._channel.shutdown_write()


class SshProcess:
    """A command in a channel."""

    def __init__(self, host: str, channel: paramiko.Channel):
        self._host, self._channel = host, channel
        self.stdin = cast(BinaryIO, io.BufferedWriter(_Writer(channel), 1 << 16))
        self.stdout = cast(BinaryIO, io.BufferedReader(_Reader(channel), 1 << 18))
        self._stderr = StderrTail(lambda: channel.recv_stderr(8192), "ssh-stderr")

    def read_all(self, timeout: float | None) -> bytes:
        """stdout to its end; TimeoutError where it takes longer."""
        deadline = None if timeout is None else time.monotonic() + timeout
        chunks = []
        try:
            while True:
                self._channel.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
                data = self._channel.recv(1 << 18)
                if not data:
                    return b"".join(chunks)
                chunks.append(data)
        finally:
            self._channel.settimeout(None)

    def wait(self, timeout: float | None = None) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"{self._host}: the command still runs after {timeout} s")
        code = self._channel.exit_status
        if code == -1:
            transport = self._channel.get_transport()
            if transport is None or not transport.is_active():
                raise LostContact(f"{self._host}: the connection is gone", "it is made anew at the next try")
            return 255  # ended by a signal, or without a word
        self._stderr.join(1.0)
        return code

    def stderr_text(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):  # the transport may be dying at this moment
            self._channel.close()
        self._stderr.join(1.0)
        for stream in (self.stdin, self.stdout):
            with contextlib.suppress(OSError, ValueError, EOFError):  # nothing can be flushed into a closed channel
                stream.close()
