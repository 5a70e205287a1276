"""One authenticated SSH connection: the way there, who is at its end, who we are, and that it stays alive."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
import socket
from dataclasses import replace
from typing import Any

import paramiko

from midstream.errors import HostError
from midstream.hosts.concurrency_limit import REACHING
from midstream.hosts.prompter import PROMPTS, FirstContact
from midstream.hosts.ssh import known_hosts
from midstream.hosts.ssh.host_certificate import certificate_of
from midstream.hosts.ssh.keys import Tried, offers, open_agent
from midstream.hosts.ssh.known_hosts import KnownHosts
from midstream.hosts.ssh.proxy import Proxy, jump_command
from midstream.hosts.ssh.settings import SshSettings, resolve_jump
from midstream.hosts.ssh.transport import BULK_WINDOW, CHANNEL_TIMEOUT, CONNECT_TIMEOUT, Transport

QUICK = 1.5  # seconds in which most machines that are there have answered
USER_TIMEOUT = 10_000  # milliseconds that sent bytes may stay unacknowledged: the kernel notices first
DEEPEST = 8  # jumps behind jumps

# paramiko logs what it also raises, with tracebacks, through a logger that falls back to stderr.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class Connection:
    """A transport, and what carries it."""

    def __init__(self, transport: Transport, carriers: tuple[Proxy | Connection, ...] = ()):
        self.transport = transport
        self._carriers = carriers

    @property
    def active(self) -> bool:
        return self.transport.is_active()

    def close(self) -> None:
        """Idempotent."""
        self.transport.close()
        for carrier in self._carriers:
            carrier.close()


def open_connection(name: str, settings: SshSettings, config_file: str, depth: int = 0) -> Connection:
    """Reach the host, check its key, log in. HostError with the line that mends it."""
    if settings.jumps and not settings.proxy_command:
        return _over_jumps(name, settings, config_file, depth)
    if settings.proxy_command:
        return _over_command(name, settings, settings.proxy_command)
    return _log_in(name, settings, _tcp(name, settings), ())


# ---------------------------------------------------------------------------------------------------- the way there


def _connected(address: tuple[str, int]) -> socket.socket:
    """A machine that is not there takes its time to say so: meanwhile others have their turn. One that is there does
    not wait with an open connection, which servers do not bear for long."""
    try:
        return socket.create_connection(address, QUICK)
    except TimeoutError:
        with REACHING.aside():
            return socket.create_connection(address, CONNECT_TIMEOUT)


def _tcp(name: str, settings: SshSettings) -> socket.socket:
    try:
        sock = _connected((settings.hostname, settings.port))
    except socket.gaierror as error:
        raise HostError(
            f"{name}: {settings.hostname} is not known ({error.strerror})", "mend address: in the fleet file"
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
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT)
    return sock


def _over_command(name: str, settings: SshSettings, command: str) -> Connection:
    proxy = Proxy(command)
    try:
        return _log_in(name, settings, proxy.sock, (proxy,))
    except BaseException:
        proxy.close()
        raise


def _over_jumps(name: str, settings: SshSettings, config_file: str, depth: int) -> Connection:
    """Over OpenSSH's own program, whose encryption has a processor of its own. It asks nothing: where there is a
    question (a key that is new, a passphrase), or no such program, the way is gone hop by hop from here."""
    if depth >= DEEPEST:
        raise HostError(f"{name}: more than {DEEPEST} jumps behind jumps", "ProxyJump leads in a circle")
    if shutil.which("ssh"):
        try:
            return _over_command(name, settings, jump_command(settings))
        except HostError as error:
            if not any(words in error.message for words in _QUESTIONS):
                raise
    *before, last = settings.jumps
    hop = resolve_jump(name, last, config_file)
    if before:  # the hops that are named here stand above those that its own entry names
        hop = replace(hop, jumps=tuple(before), proxy_command=None)
    through = open_connection(hop.alias, hop, config_file, depth + 1)
    try:
        try:
            channel = through.transport.open_channel(
                "direct-tcpip",
                (settings.hostname, settings.port),
                ("127.0.0.1", 0),
                window_size=BULK_WINDOW,  # the connection in it has windows of its own
                timeout=CHANNEL_TIMEOUT,
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostError(
                f"{name}: {settings.hostname}:{settings.port} cannot be reached from {hop.alias}: {error}",
                "is the machine up, its SSH port open to the jump host, and AllowTcpForwarding on there?",
            ) from error
        return _log_in(name, settings, _Through(channel), (through,))
    except BaseException:
        through.close()
        raise


class _Through:
    """A channel in the place of a socket. A socket closes in silence when its way is gone; a channel raises EOFError,
    which the thread that reads from it dies of, aloud."""

    def __init__(self, channel: paramiko.Channel):
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


# ------------------------------------------------------------------------------------------------------ both proofs


def _log_in(name: str, settings: SshSettings, sock: Any, carriers: tuple[Proxy | Connection, ...]) -> Connection:
    try:
        transport = Transport(sock)
    except BaseException:
        sock.close()
        raise
    try:
        known = KnownHosts(settings.known_hosts)
        _prefer(transport, known.kinds(settings.names))
        transport.wants_certificate = bool(known.authorities(settings.names))
        transport.start_client(timeout=CONNECT_TIMEOUT)
        _check_host_key(name, settings, known, transport.get_remote_server_key(), direct=not carriers)
        _authenticate(name, settings, transport)
    except HostError:
        transport.close()
        raise
    except (paramiko.SSHException, EOFError, OSError) as error:
        proxy = next((each for each in carriers if isinstance(each, Proxy)), None)
        words = proxy.last_words() if proxy else ""
        transport.close()
        raise HostError(
            f"{name}: no SSH session with {settings.address}: {words or str(error) or type(error).__name__}",
            f"try: {proxy.command}" if words and proxy else "is it an SSH server?",
        ) from error
    except BaseException:
        transport.close()
        raise
    transport.stay_alive()
    return Connection(transport, carriers)


def _prefer(transport: Transport, kinds: tuple[str, ...]) -> None:
    """Ask for a key of a kind that is known: a host with several keys shows that one."""
    security = transport.get_security_options()
    wanted: list[str] = []
    for kind in kinds:
        wanted += ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
    first = [kind for kind in wanted if kind in security.key_types]
    security.key_types = [*first, *(each for each in security.key_types if each not in first)]


def _check_host_key(name: str, settings: SshSettings, known: KnownHosts, key: paramiko.PKey, *, direct: bool) -> None:
    shown = f"{key.get_name()} {key.fingerprint}"
    verdict = known.verdict(settings.names, key)
    if verdict != known_hosts.REVOKED and _vouched_for(name, settings, known, key):
        return
    if verdict == known_hosts.KNOWN:
        return
    file = settings.known_hosts[0] if settings.known_hosts else ""
    accept = _accepting_line(settings, key, file, direct=direct)
    if verdict == known_hosts.REVOKED:
        raise HostError(f"{name}: host key of {settings.known_as} is REVOKED ({shown}): do not use that machine")
    if verdict == known_hosts.CHANGED:
        place = known.place(settings.names)
        raise HostError(
            f"{name}: host key of {settings.known_as} has CHANGED (it shows {shown}; another stands in {place}): "
            f"another machine may be answering",
            f"only if you know why: ssh-keygen -R {shlex.quote(settings.known_as)} "
            f"-f {shlex.quote(place.rpartition(':')[0])}, then {accept}",
        )
    refusal = f"{name}: host key of {settings.known_as} is not known ({shown})"
    if not file:
        raise HostError(refusal, "UserKnownHostsFile names no file to keep it in")
    answer = PROMPTS.accepts(FirstContact(name, settings.known_as, key.get_name(), key.fingerprint, file))
    if answer:
        if KnownHosts([file]).verdict([settings.known_as], key) != known_hosts.KNOWN:
            known_hosts.remember(file, settings.known_as, key, hashed=settings.hash_known_hosts)
        return
    raise HostError(
        f"{refusal}{'' if answer is None else ', and was not accepted'}", f"compare the fingerprint, then: {accept}"
    )


def _vouched_for(name: str, settings: SshSettings, known: KnownHosts, key: paramiko.PKey) -> bool:
    """Whether the host shows a certificate of an authority that known_hosts believes. One of such an authority that is
    not good is refused: HostError. Any other counts as the plain key that is in it."""
    try:
        certificate = certificate_of(key)
    except ValueError as error:
        raise HostError(f"{name}: its host certificate cannot be read: {error}", "mend HostCertificate there") from None
    if certificate is None or certificate.authority not in known.authorities(settings.names):
        return False
    plain = [each.removeprefix("[").partition("]")[0] for each in settings.names]
    flaw = certificate.flaw(list(dict.fromkeys(plain)))
    if flaw:
        raise HostError(
            f"{name}: the certificate of host {settings.known_as} ({certificate.key_id}) is not good: {flaw}",
            "whoever runs its authority signs a new one: ssh-keygen -s CA -h -n NAME host_key.pub",
        )
    return True


def _accepting_line(settings: SshSettings, key: paramiko.PKey, file: str, *, direct: bool) -> str:
    """A shell line that makes the key known. What cannot be scanned from here is written as it was shown."""
    if direct and settings.known_as in (settings.hostname, f"[{settings.hostname}]:{settings.port}"):
        port = [] if settings.port == 22 else ["-p", str(settings.port)]
        return f"{shlex.join(['ssh-keyscan', *port, settings.hostname])} >> {shlex.quote(file)}"
    return f"echo {shlex.quote(known_hosts.line_of(settings.known_as, key))} >> {shlex.quote(file)}"


def _authenticate(name: str, settings: SshSettings, transport: Transport) -> None:
    tried = Tried()
    agent = open_agent(settings.identity_agent)
    try:
        for offer in offers(name, settings, agent, tried):
            if not transport.is_active():
                break
            try:
                more = transport.auth_publickey(settings.user, offer.key)
            except paramiko.BadAuthenticationType as error:
                raise HostError(
                    f"{name}: {settings.address} takes no keys (it wants {', '.join(error.allowed_types)})",
                    "PubkeyAuthentication yes in its sshd_config",
                ) from error
            except paramiko.AuthenticationException:
                continue
            except paramiko.SSHException:
                # An agent that refuses to sign, or a kind of key that the server has no name for.
                if transport.is_active():
                    continue
                break
            if more:
                raise HostError(
                    f"{name}: {settings.address} wants more than a key ({', '.join(more)})",
                    "midstream proves itself by keys alone: nobody is there to type while a migration runs",
                )
            return
    finally:
        if agent is not None:
            agent.close()
    if not transport.is_active() and not tried.locked:
        raise HostError(
            f"{name}: {settings.address} closed the connection at the door (tried {tried.text()})",
            "too many keys are a usual reason: IdentityFile and IdentitiesOnly yes name the one",
        )
    if tried.locked:
        raise HostError(
            f"{name}: the key file {tried.locked[0]} has a passphrase, and nobody said it",
            f"ssh-add {shlex.quote(tried.locked[0])} hands it to the agent",
        )
    raise HostError(
        f"{name}: {settings.address} accepts none of our keys (tried {tried.text()})",
        f"ssh-copy-id, or identity_file: in the fleet file; ssh -v {shlex.quote(settings.hostname)} tells more",
    )
