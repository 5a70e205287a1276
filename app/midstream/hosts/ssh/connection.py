"""Open an authenticated SSH connection: route, host key, login, keep-alives."""

from __future__ import annotations

import contextlib
import logging
import shutil
import socket
import time
from dataclasses import replace
from typing import Any, cast

import paramiko

from midstream.errors import HostError
from midstream.hosts.concurrency_limit import CONNECT_LIMIT
from midstream.hosts.ssh import failed_logins
from midstream.hosts.ssh.host_key_check import check_address, check_host_key, check_revocation, prefer_known
from midstream.hosts.ssh.known_hosts import KnownHosts, printed_by
from midstream.hosts.ssh.login import authenticate
from midstream.hosts.ssh.proxy import Proxy, jump_command
from midstream.hosts.ssh.resolved_options import SshSettings, resolve_jump
from midstream.hosts.ssh.transport import (
    BULK_WINDOW,
    CHANNEL_TIMEOUT,
    CONNECT_TIMEOUT,
    MAX_OFFER,
    Transport,
    UnsupportedAlgorithmsError,
)

FIRST_CONNECT_TIMEOUT = 1.5  # seconds; most reachable machines have answered by then
TCP_USER_TIMEOUT = 10_000  # milliseconds that sent bytes may stay unacknowledged before the kernel drops the connection
MAX_JUMP_DEPTH = 8
# What OpenSSH's server sends in place of its version -> what it means, and what to do.
REFUSALS = {
    "Not allowed at this time": (
        "the server refuses connections from this machine for a while after failed logins (PerSourcePenalties)",
        "wait for a minute, and correct the entries of this server whose keys it does not accept",
    ),
    "Exceeded MaxStartups": (
        "too many connections log in to the server at the same time (MaxStartups)",
        "repeat it in a moment; MaxStartups 100 in its sshd_config allows more",
    ),
}

# paramiko logs what it also raises, with tracebacks, through a logger that falls back to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Connection:
    """A transport, and the proxies or connections below it."""

    def __init__(self, transport: Transport, layers: tuple[Proxy | Connection, ...] = ()) -> None:
        self.transport = transport
        self._layers = layers

    @property
    def active(self) -> bool:
        """True until the connection is closed or lost."""
        return self.transport.is_active()

    @property
    def peer_address(self) -> str:
        """The address of the other end; empty if a proxy or another connection is between."""
        if self._layers:
            return ""
        try:
            name = cast("tuple[Any, ...]", self.transport.sock.getpeername())
        except OSError:  # it is lost
            return ""
        zone = f"%{name[3]}" if len(name) == 4 and name[3] else ""
        return f"{name[0]}{zone}"

    def close(self) -> None:
        """Close the connection and everything below it. Idempotent."""
        self.transport.close()
        for layer in self._layers:
            layer.close()


def open_connection(name: str, settings: SshSettings, config_file: str, depth: int = 0) -> Connection:
    """Connect to the host, check its key, log in.

    Raises HostError, with a hint, if any of these fails.
    """
    failed_logins.check(name, settings)
    if settings.jumps and not settings.proxy_command:
        return _over_jumps(name, settings, config_file, depth)
    if settings.proxy_command:
        return _over_command(name, settings, settings.proxy_command)
    return _log_in(name, settings, _tcp(name, settings), ())


# -------------------------------------------------------------------------------------------------------- route


def _connected(settings: SshSettings) -> socket.socket:
    """Connect, and release the connection slot if the address does not answer soon.

    A reachable machine keeps its slot: servers close a connection on which no user logs in.
    """
    for _ in range(settings.connection_attempts - 1):
        with contextlib.suppress(OSError), CONNECT_LIMIT.released():
            return _connected_within(settings, settings.connect_timeout)
        time.sleep(1.0)  # as ssh
    try:
        return _connected_within(settings, min(FIRST_CONNECT_TIMEOUT, settings.connect_timeout))
    except TimeoutError:
        with CONNECT_LIMIT.released():
            return _connected_within(settings, settings.connect_timeout)


def _connected_within(settings: SshSettings, timeout: float) -> socket.socket:
    """Connect to the host's first address that answers.

    Each address of the AddressFamily has ``timeout`` seconds.
    """
    infos = socket.getaddrinfo(settings.hostname, settings.port, settings.family, socket.SOCK_STREAM)
    source = (settings.bind_address, 0) if settings.bind_address else None
    addresses = [(str(address[0]), settings.port) for *_, address in infos]
    for address in addresses[:-1]:
        with contextlib.suppress(OSError):
            return socket.create_connection(address, timeout, source)
    return socket.create_connection(addresses[-1], timeout, source)


def _tcp(name: str, settings: SshSettings) -> socket.socket:
    try:
        sock = _connected(settings)
    except socket.gaierror as error:
        raise HostError(
            f"{name}: {settings.hostname} cannot be resolved ({error.strerror})", "correct address: in the fleet file"
        ) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise HostError(
            f"{name}: {settings.hostname}:{settings.port} cannot be reached: {why}",
            "is the machine up, and its SSH port open to this one? ConnectTimeout of the SSH configuration allows more "
            f"than {settings.connect_timeout:.0f} s"
            if isinstance(error, TimeoutError)
            else "is the machine up, and its SSH port open to this one?",
        ) from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT)
    return sock


def _over_command(name: str, settings: SshSettings, command: str) -> Connection:
    proxy = Proxy(command, passes_socket=settings.proxy_passes_socket, timeout=settings.connect_timeout)
    try:
        return _log_in(name, settings, proxy.sock, (proxy,))
    except BaseException:
        proxy.close()
        raise


def _over_jumps(name: str, settings: SshSettings, config_file: str, depth: int) -> Connection:
    """Connect through ProxyJump hosts.

    OpenSSH's program goes first: its encryption runs in a process of its own. That program never prompts, so where it
    is missing, or if there is a question (an unknown host key, a passphrase), this process connects hop by hop.
    """
    if depth >= MAX_JUMP_DEPTH:
        raise HostError(f"{name}: more than {MAX_JUMP_DEPTH} jumps behind jumps", "ProxyJump leads in a circle")
    *before, last = settings.jumps
    hop = resolve_jump(name, last, config_file)
    for jump in settings.jumps:
        failed_logins.check(jump, resolve_jump(name, jump, config_file) if before else hop)
    if shutil.which("ssh") and not depth:  # behind a jump it has already failed
        try:
            return _over_command(name, settings, jump_command(settings, hop))
        except HostError as error:
            if not any(words in error.message for words in _QUESTIONS):
                raise
    if before:  # these hops override those of its own entry
        hop = replace(hop, jumps=tuple(before), proxy_command=None)
    through = open_connection(hop.alias, hop, config_file, depth + 1)
    try:
        try:
            channel = through.transport.open_channel(
                "direct-tcpip",
                (settings.hostname, settings.port),
                ("127.0.0.1", 0),
                window_size=BULK_WINDOW,  # the inner connection has its own windows
                timeout=CHANNEL_TIMEOUT,
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostError(
                f"{name}: {settings.hostname}:{settings.port} cannot be reached from {hop.alias}: {error}",
                "is the machine up, its SSH port open to the jump host, and AllowTcpForwarding on there?",
            ) from error
        return _log_in(name, settings, _ChannelSocket(channel), (through,))
    except BaseException:
        through.close()
        raise


class _ChannelSocket:
    """A channel with the interface of a socket.

    On a lost jump connection a channel raises EOFError when it is closed, which would end paramiko's reader thread with
    a traceback. A socket closes without an error, and so does this.
    """

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> object:
        return getattr(self._channel, name)

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown(how)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()


_REFUSED = ("Permission denied", "Too many authentication failures")  # what ssh prints as a proxy command
_QUESTIONS = ("Host key verification failed", *_REFUSED)


# -------------------------------------------------------------------------------------------------------- login


def _log_in(name: str, settings: SshSettings, sock: Any, layers: tuple[Proxy | Connection, ...]) -> Connection:
    try:
        transport = Transport(sock, settings.connect_timeout, settings.algorithms)
    except UnsupportedAlgorithmsError as error:
        sock.close()
        raise _unsupported(name, settings, error) from error
    except BaseException:
        sock.close()
        raise
    try:
        host_keys = KnownHosts(settings.known_hosts, printed_by(settings))
        prefer_known(transport, host_keys.kinds(settings.names))
        transport.prefers_certificates = bool(host_keys.authorities(settings.names))
        transport.start_client(timeout=CONNECT_TIMEOUT)
        key = transport.get_remote_server_key()
        if settings.known_hosts_command:
            host_keys = KnownHosts(settings.known_hosts, printed_by(settings, key))
        check_revocation(name, settings, key)
        check_host_key(name, settings, host_keys, key, direct=not layers)
        if settings.check_host_ip and not layers:
            check_address(name, settings, host_keys, key, transport)
        authenticate(name, settings, transport)
        failed_logins.clear(settings)
        transport.start_keepalives()
    except HostError:
        transport.close()
        raise
    except UnsupportedAlgorithmsError as error:
        transport.close()
        raise _unsupported(name, settings, error) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        proxy = next((layer for layer in layers if isinstance(layer, Proxy)), None)
        words = proxy.exit_message() if proxy else ""
        transport.close()
        refusal = _no_session(name, settings, transport.greeting, words, error, proxy)
        if settings.proxy_command and any(refusal_words in words for refusal_words in _REFUSED):
            failed_logins.recorded(settings, refusal)
        raise refusal from error
    except BaseException:
        transport.close()
        raise
    return Connection(transport, layers)


def _unsupported(name: str, settings: SshSettings, error: UnsupportedAlgorithmsError) -> HostError:
    return HostError(
        f"{name}: no SSH session with {settings.address}: {error}",
        f"midstream supports {', '.join(error.supported)}; the SSH configuration, or the server's, has to allow one",
    )


def _no_session(
    name: str, settings: SshSettings, greeting: str, words: str, error: Exception, proxy: Proxy | None
) -> HostError:
    """Return the error of a connection that has ended before the login.

    Args:
        name: Name of the host.
        settings: Its settings.
        greeting: What the server has sent instead of its version.
        words: What the proxy command has reported.
        error: What has ended the connection.
        proxy: The proxy command, if there is one.
    """
    begin = f"{name}: no SSH session with {settings.address}"
    for sent, (meaning, hint) in REFUSALS.items():
        if sent in greeting:
            return HostError(f"{begin}: {meaning} ({sent!r})", hint)
    if words and proxy:
        return HostError(f"{begin}: {words}", f"try: {proxy.command}")
    if greeting:
        return HostError(f"{begin}: it sent {greeting[:MAX_OFFER]!r}", "is it an SSH server?")
    return HostError(f"{begin}: {str(error) or type(error).__name__}", "is it an SSH server?")
