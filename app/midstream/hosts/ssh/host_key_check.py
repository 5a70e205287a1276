"""Check of a host's key, its certificate, RevokedHostKeys and CheckHostIP."""

from __future__ import annotations

import ipaddress
import shlex
from typing import Any, cast

import paramiko

from midstream.errors import HostError
from midstream.hosts.prompter import PROMPTS, HostKeyPrompt
from midstream.hosts.ssh import known_hosts
from midstream.hosts.ssh.host_certificate import certificate_of
from midstream.hosts.ssh.known_hosts import KnownHosts
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.hosts.ssh.transport import Transport


def prefer_known(transport: Transport, kinds: tuple[str, ...]) -> None:
    """Prefer the known kinds of host key.

    A host with several keys sends one of these.
    """
    security = transport.get_security_options()
    preferred: list[str] = []
    for kind in kinds:
        preferred += ("rsa-sha2-512", "rsa-sha2-256") if kind == "ssh-rsa" else (kind,)
    first = [kind for kind in preferred if kind in security.key_types]
    security.key_types = [*first, *(kind for kind in security.key_types if kind not in first)]


def check_host_key(
    name: str, settings: SshSettings, host_keys: KnownHosts, key: paramiko.PKey, *, direct: bool
) -> None:
    shown = f"{key.get_name()} {key.fingerprint}"
    verdict = host_keys.verdict(settings.names, key)
    if verdict != known_hosts.REVOKED and _is_certified(name, settings, host_keys, key):
        return
    if verdict == known_hosts.KNOWN:
        return
    file = settings.known_hosts[0]
    accept = _accepting_line(settings, key, file, direct=direct)
    if verdict == known_hosts.REVOKED:
        raise HostError(f"{name}: host key of {settings.known_as} is REVOKED ({shown}): do not use that machine")
    if verdict == known_hosts.CHANGED:
        location = host_keys.location(settings.names)
        raise HostError(
            f"{name}: host key of {settings.known_as} has CHANGED (it shows {shown}; another is in {location}): "
            f"another machine may be answering",
            f"only if you know why: ssh-keygen -R {shlex.quote(settings.known_as)} "
            f"-f {shlex.quote(location.rpartition(':')[0])}, then {accept}",
        )
    unused = f"; {', '.join(settings.unused_trust)} is not supported" if settings.unused_trust else ""
    refusal = f"{name}: host key of {settings.known_as} is not known ({shown}){unused}"
    answer = PROMPTS.accepts(HostKeyPrompt(name, settings.known_as, key.get_name(), key.fingerprint, file))
    if answer:
        try:
            if KnownHosts([file]).verdict([settings.known_as], key) != known_hosts.KNOWN:
                known_hosts.remember(file, settings.known_as, key, hashed=settings.hash_known_hosts)
        except OSError as error:
            raise HostError(
                f"{name}: the accepted host key cannot be written to {file}: {error.strerror}",
                f"known_hosts: FILE at {name} in the fleet file",
            ) from error
        return
    raise HostError(
        f"{refusal}{'' if answer is None else ', and was not accepted'}", f"compare the fingerprint, then: {accept}"
    )


def _is_certified(name: str, settings: SshSettings, host_keys: KnownHosts, key: paramiko.PKey) -> bool:
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
    if certificate is None or certificate.authority not in host_keys.authorities(settings.names):
        return False
    plain = [address.removeprefix("[").partition("]")[0] for address in settings.names]
    flaw = certificate.flaw(list(dict.fromkeys(plain)))
    if flaw:
        raise HostError(
            f"{name}: the certificate of host {settings.known_as} ({certificate.key_id}) is not valid: {flaw}",
            "its authority has to sign a new one: ssh-keygen -s CA -h -n NAME host_key.pub",
        )
    return True


def _accepting_line(settings: SshSettings, key: paramiko.PKey, file: str, *, direct: bool) -> str:
    """Return a shell command that adds the key to known_hosts.

    For a directly reachable host the command uses ssh-keyscan.
    """
    if direct and settings.known_as in (settings.hostname, f"[{settings.hostname}]:{settings.port}"):
        port = [] if settings.port == 22 else ["-p", str(settings.port)]
        return f"{shlex.join(['ssh-keyscan', *port, settings.hostname])} >> {shlex.quote(file)}"
    return f"echo {shlex.quote(known_hosts.line_of(settings.known_as, key))} >> {shlex.quote(file)}"


def check_revocation(name: str, settings: SshSettings, key: paramiko.PKey) -> None:
    """Raise HostError if RevokedHostKeys has the key.

    As ssh, also if the file cannot be read.
    """
    file = settings.revoked_host_keys
    if file is None:
        return
    try:
        revoked = known_hosts.is_revoked(file, key)
    except (OSError, ValueError) as error:
        raise HostError(f"{name}: RevokedHostKeys {file} cannot be used: {error}", "a file of public keys") from error
    if revoked:
        raise HostError(f"{name}: host key of {settings.known_as} is REVOKED by {file}: do not use that machine")


def check_address(
    name: str, settings: SshSettings, host_keys: KnownHosts, key: paramiko.PKey, transport: Transport
) -> None:
    """Raise HostError if the host's address has another key (CheckHostIP).

    As ssh, loopback addresses are not checked.
    """
    address = str(cast("tuple[Any, ...]", transport.sock.getpeername())[0])
    names = [address if settings.port == 22 else f"[{address}]:{settings.port}"]
    plain = ipaddress.ip_address(address.partition("%")[0])
    if address != settings.hostname and not plain.is_loopback and host_keys.verdict(names, key) == known_hosts.CHANGED:
        raise HostError(
            f"{name}: the host key of {settings.known_as} is another one than that of its address {address}, "
            f"in {host_keys.location(names)}",
            "another machine may be answering; CheckHostIP no where addresses change",
        )
