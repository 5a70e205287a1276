"""Open an authenticated SSH connection: route, host key, login, keep-alives."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import shutil
import socket
from dataclasses import replace
from typing import Any, cast

import paramiko

from midstream.errors import HostError
from midstream.hosts.concurrency_limit import CONNECT_LIMIT
from midstream.hosts.prompter import PROMPTS, HostKeyPrompt
from midstream.hosts.ssh import known_hosts
from midstream.hosts.ssh.auth_keys import KeyAttempts, offers, open_agent
from midstream.hosts.ssh.host_certificate import certificate_of
from midstream.hosts.ssh.known_hosts import KnownHosts
from midstream.hosts.ssh.proxy import Proxy, jump_command
from midstream.hosts.ssh.settings import SshSettings, resolve_jump
from midstream.hosts.ssh.transport import BULK_WINDOW, CHANNEL_TIMEOUT, CONNECT_TIMEOUT, Transport

FIRST_CONNECT_TIMEOUT = 1.5  # seconds; most reachable machines have answered by then
TCP_USER_TIMEOUT = 10_000  # milliseconds that sent bytes may stay unacknowledged before the kernel drops the connection
MAX_JUMP_DEPTH = 8

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
    if settings.jumps and not settings.proxy_command:
        return _over_jumps(name, settings, config_file, depth)
    if settings.proxy_command:
        return _over_command(name, settings, settings.proxy_command)
    return _log_in(name, settings, _tcp(name, settings), ())


# -------------------------------------------------------------------------------------------------------- route


def _connected(address: tuple[str, int]) -> socket.socket:
    """Connect, and release the connection slot if the address does not answer soon.

    A reachable machine keeps its slot: servers close a connection on which no user logs in.
    """
    try:
        return socket.create_connection(address, FIRST_CONNECT_TIMEOUT)
    except TimeoutError:
        with CONNECT_LIMIT.released():
            return socket.create_connection(address, CONNECT_TIMEOUT)


def _tcp(name: str, settings: SshSettings) -> socket.socket:
    try:
        sock = _connected((settings.hostname, settings.port))
    except socket.gaierror as error:
        raise HostError(
            f"{name}: {settings.hostname} cannot be resolved ({error.strerror})", "correct address: in the fleet file"
        ) from error
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise HostError(
            f"{name}: {settings.hostname}:{settings.port} cannot be reached: {why}",
            "is the machine up, and its SSH port open to this one?",
        ) from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT)
    return sock


def _over_command(name: str, settings: SshSettings, command: str) -> Connection:
    proxy = Proxy(command)
    try:
        return _log_in(name, settings, proxy.sock, (proxy,))
    except BaseException:
        proxy.close()
        raise


def _over_jumps(name: str, settings: SshSettings, config_file: str, depth: int) -> Connection:
    """Connect through ProxyJump hosts.

    OpenSSH's program goes first: its encryption runs in a process of its own. It never prompts, so without such a
    program, or if there is a question (an unknown host key, a passphrase), this process connects hop by hop.
    """
    if depth >= MAX_JUMP_DEPTH:
        raise HostError(f"{name}: more than {MAX_JUMP_DEPTH} jumps behind jumps", "ProxyJump leads in a circle")
    if shutil.which("ssh"):
        try:
            return _over_command(name, settings, jump_command(settings))
        except HostError as error:
            if not any(words in error.message for words in _QUESTIONS):
                raise
    *before, last = settings.jumps
    hop = resolve_jump(name, last, config_file)
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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def shutdown(self, how: int) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown(how)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()


_QUESTIONS = ("Host key verification failed", "Permission denied", "Too many authentication failures")


# -------------------------------------------------------------------------------------------------------- login


def _log_in(name: str, settings: SshSettings, sock: Any, layers: tuple[Proxy | Connection, ...]) -> Connection:
    try:
        transport = Transport(sock)
    except BaseException:
        sock.close()
        raise
    try:
        known = KnownHosts(settings.known_hosts)
        _prefer(transport, known.kinds(settings.names))
        transport.prefers_certificates = bool(known.authorities(settings.names))
        transport.start_client(timeout=CONNECT_TIMEOUT)
        _check_host_key(name, settings, known, transport.get_remote_server_key(), direct=not layers)
        _authenticate(name, settings, transport)
        transport.start_keepalives()
    except HostError:
        transport.close()
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        proxy = next((each for each in layers if isinstance(each, Proxy)), None)
        words = proxy.exit_message() if proxy else ""
        transport.close()
        raise HostError(
            f"{name}: no SSH session with {settings.address}: {words or str(error) or type(error).__name__}",
            f"try: {proxy.command}" if words and proxy else "is it an SSH server?",
        ) from error
    except BaseException:
        transport.close()
        raise
    return Connection(transport, layers)


def _prefer(transport: Transport, kinds: tuple[str, ...]) -> None:
    """Prefer the known kinds of host key.

    A host with several keys sends one of these.
    """
    security = transport.get_security_options()
    wanted: list[str] = []
    for kind in kinds:
        wanted += ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
    first = [kind for kind in wanted if kind in security.key_types]
    security.key_types = [*first, *(each for each in security.key_types if each not in first)]


def _check_host_key(name: str, settings: SshSettings, known: KnownHosts, key: paramiko.PKey, *, direct: bool) -> None:
    shown = f"{key.get_name()} {key.fingerprint}"
    verdict = known.verdict(settings.names, key)
    if verdict != known_hosts.REVOKED and _is_certified(name, settings, known, key):
        return
    if verdict == known_hosts.KNOWN:
        return
    file = settings.known_hosts[0] if settings.known_hosts else ""
    accept = _accepting_line(name, settings, key, file, direct=direct)
    if verdict == known_hosts.REVOKED:
        raise HostError(f"{name}: host key of {settings.known_as} is REVOKED ({shown}): do not use that machine")
    if verdict == known_hosts.CHANGED:
        location = known.location(settings.names)
        raise HostError(
            f"{name}: host key of {settings.known_as} has CHANGED (it shows {shown}; another is in {location}): "
            f"another machine may be answering",
            f"only if you know why: ssh-keygen -R {shlex.quote(settings.known_as)} "
            f"-f {shlex.quote(location.rpartition(':')[0])}, then {accept}",
        )
    refusal = f"{name}: host key of {settings.known_as} is not known ({shown})"
    if not file:
        raise HostError(refusal, "UserKnownHostsFile names no file to store it in")
    answer = PROMPTS.accepts(HostKeyPrompt(name, settings.known_as, key.get_name(), key.fingerprint, file))
    if answer:
        if KnownHosts([file]).verdict([settings.known_as], key) != known_hosts.KNOWN:
            known_hosts.remember(file, settings.known_as, key, hashed=settings.hash_known_hosts)
        return
    raise HostError(
        f"{refusal}{'' if answer is None else ', and was not accepted'}", f"compare the fingerprint, then: {accept}"
    )


def _is_certified(name: str, settings: SshSettings, known: KnownHosts, key: paramiko.PKey) -> bool:
    """Return whether the host has a valid certificate of a trusted authority.

    known_hosts names the authorities that are trusted.

    Raises HostError for an invalid certificate of such an authority. Any other certificate counts as its plain key.
    """
    try:
        certificate = certificate_of(key)
    except ValueError as error:
        raise HostError(
            f"{name}: its host certificate cannot be read: {error}", "check HostCertificate in its sshd_config"
        ) from None
    if certificate is None or certificate.authority not in known.authorities(settings.names):
        return False
    plain = [each.removeprefix("[").partition("]")[0] for each in settings.names]
    flaw = certificate.flaw(list(dict.fromkeys(plain)))
    if flaw:
        raise HostError(
            f"{name}: the certificate of host {settings.known_as} ({certificate.key_id}) is not valid: {flaw}",
            "its authority has to sign a new one: ssh-keygen -s CA -h -n NAME host_key.pub",
        )
    return True


def _accepting_line(name: str, settings: SshSettings, key: paramiko.PKey, file: str, *, direct: bool) -> str:
    """Return a shell command that adds the key to known_hosts.

    For a directly reachable host the command uses ssh-keyscan. Where the SSH configuration discards host keys, it is
    the line of the fleet file that has to come before.
    """
    if file == os.devnull:
        return f"known_hosts: FILE at {name} in the fleet file (UserKnownHostsFile is {file}, which has no keys)"
    if direct and settings.known_as in (settings.hostname, f"[{settings.hostname}]:{settings.port}"):
        port = [] if settings.port == 22 else ["-p", str(settings.port)]
        return f"{shlex.join(['ssh-keyscan', *port, settings.hostname])} >> {shlex.quote(file)}"
    return f"echo {shlex.quote(known_hosts.line_of(settings.known_as, key))} >> {shlex.quote(file)}"


def _authenticate(name: str, settings: SshSettings, transport: Transport) -> None:
    attempts = KeyAttempts()
    agent = open_agent(settings.identity_agent)
    try:
        for offer in offers(name, settings, agent, attempts):
            if not transport.is_active():
                break
            try:
                more = transport.auth_publickey(settings.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                raise HostError(
                    f"{name}: {settings.address} takes no keys (it accepts {', '.join(error.allowed_types)})",
                    "PubkeyAuthentication yes in its sshd_config",
                ) from error
            except paramiko.AuthenticationException:
                continue
            except paramiko.SSHException:
                # The agent refused to sign, or the server does not support this kind of key.
                if transport.is_active():
                    continue
                break
            if more:
                raise HostError(
                    f"{name}: {settings.address} requires more than a key ({', '.join(more)})",
                    "midstream logs in with keys alone: no password can be typed while a migration runs",
                )
            return
    finally:
        if agent is not None:
            agent.close()
    if not transport.is_active() and not attempts.locked:
        raise HostError(
            f"{name}: {settings.address} closed the connection during login (tried {attempts.text()})",
            "too many keys are a usual reason: IdentityFile and IdentitiesOnly yes name the one",
        )
    if attempts.locked:
        raise HostError(
            f"{name}: the key file {attempts.locked[0]} has a passphrase, and none was entered",
            f"ssh-add {shlex.quote(attempts.locked[0])} adds it to the agent",
        )
    raise HostError(
        f"{name}: {settings.address} accepts none of our keys (tried {attempts.text()})",
        f"ssh-copy-id, or identity_file: in the fleet file; ssh -v {shlex.quote(settings.hostname)} shows more",
    )
