"""Login keys: the agent's, key files, OpenSSH certificates; their passphrases.

The order is OpenSSH's: the certificates of CertificateFile, the configured keys of the agent, its other keys (unless
IdentitiesOnly), then key files. Encrypted files come last, so that the user is prompted for a passphrase only if no
other key is accepted. A certificate on the disk is used with its key wherever that is, in the agent or in a file.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from paramiko.agent import AgentKey, AgentSSH
from paramiko.message import Message
from paramiko.pkey import PublicBlob, UnknownKeyType

from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh.resolved_options import SshSettings
from midstream.hosts.ssh.untyped_library import untyped

AGENT_TIMEOUT = 60.0  # seconds; an agent may ask its user before it signs
CERTIFICATE = "-cert-v01@openssh.com"


class KeyLockedError(Exception):
    """A key file is encrypted, and no passphrase was entered."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


class UnreadableKeyError(Exception):
    """A key file is malformed, or of a kind that paramiko does not support."""


@dataclass
class KeyAttempts:
    """Keys that were offered to the server, for the message of a failed login."""

    agent: int = 0  # keys of the agent
    files: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the keys as text."""
        words = [*self.files]
        if self.agent:
            words.append(f"{self.agent} of the agent")
        words += [f"{file} is locked" for file in self.locked]
        words += [f"{file} cannot be read" for file in self.unreadable]
        return ", ".join(words) or "none: there is no agent, and no key file"


# ------------------------------------------------------------------------------------------------------ the agent


class Agent(AgentSSH):
    """The agent behind one socket. paramiko's class supports only $SSH_AUTH_SOCK."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(AGENT_TIMEOUT)
        try:
            self._sock.connect(path)
            untyped(self)._connect(self._sock)
        except BaseException:
            self._sock.close()
            raise

    def keys(self) -> list[AgentKey]:
        """Return the agent's keys; certificates are offered as such.

        paramiko would offer the plain keys of the certificates.
        """
        return [
            with_certificate(key, PublicBlob(key.get_name(), key.blob)) if key.get_name().endswith(CERTIFICATE) else key
            for key in self.get_keys()
        ]

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def with_certificate(key: AgentKey, certificate: PublicBlob) -> AgentKey:
    """Return the agent's key with a certificate, which is offered in its place."""
    other = AgentKey(key.agent, key.blob, key.comment)
    if key.get_name().endswith(CERTIFICATE):
        untyped(other).inner_key = None  # the agent signs with the certificate itself
    untyped(other).public_blob = certificate
    return other


def open_agent(path: str | None) -> Agent | None:
    """Return the agent behind the socket, None if none answers."""
    if path is None:
        return None
    try:
        return Agent(path)
    except (OSError, paramiko.SSHException):
        return None


# ---------------------------------------------------------------------------------------------------------- files

_opened: dict[tuple[str, int], paramiko.PKey] = {}  # decrypted keys: no second prompt when reconnecting
_opening = threading.Lock()


def public_blob(file: str) -> bytes | None:
    """Return the public key, or the certificate, that a file of IdentityFile names.

    The key is read from OpenSSH's unencrypted header of a private key, from a file that is itself a public key, or from
    ``FILE.pub``.
    """
    with contextlib.suppress(OSError, ValueError, struct.error):
        with open(file, encoding="ascii") as text:
            lines = [line.strip() for line in text if not line.startswith("-----")]
        data = base64.b64decode("".join(lines))
        magic = b"openssh-key-v1\0"
        if data.startswith(magic):
            message = Message(data[len(magic) :])
            for _ in ("cipher", "kdf", "options"):
                message.get_string()
            message.get_int()  # number of keys
            return message.get_string()
    for path in (file, f"{file}.pub"):
        if (public_file := _public_file(path)) is not None:
            return public_file.key_blob
    return None


def _public_file(file: str) -> PublicBlob | None:
    """Return the public key or the certificate in a file of one line."""
    try:
        return PublicBlob.from_file(file)
    except (OSError, ValueError):
        return None


def load_key(host: str, file: str, *, prompt: bool) -> paramiko.PKey:
    """Load a private key file.

    Raises KeyLockedError if it is encrypted and no passphrase opens it, UnreadableKeyError if it is malformed.
    """
    mark = (file, os.stat(file).st_mtime_ns)
    if (opened := _opened.get(mark)) is not None:
        return opened
    try:
        return _from_file(file, None)
    except paramiko.PasswordRequiredException:
        if not prompt:
            raise KeyLockedError(file) from None
    key = PROMPTS.unlock(host, file, lambda passphrase: _opened.get(mark) or _unlocked(file, passphrase))
    if key is None:
        raise KeyLockedError(file)
    with _opening:
        _opened[mark] = key
    return key


def _unlocked(file: str, passphrase: str) -> paramiko.PKey | None:
    """Return the key, None if the passphrase is wrong."""
    try:
        return _from_file(file, passphrase)
    except (paramiko.PasswordRequiredException, UnreadableKeyError):
        return None


def _from_file(file: str, passphrase: str | None) -> paramiko.PKey:
    password = passphrase.encode() if passphrase else None
    try:
        data = Path(file).read_bytes()
        if re.search(rb"^-----BEGIN (ENCRYPTED )?PRIVATE KEY-----", data, re.M):
            return _from_pkcs8(data, password)
        return paramiko.PKey.from_path(file, untyped(password))
    except (paramiko.PasswordRequiredException, TypeError) as error:
        if passphrase is None:
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKeyError(f"{file}: {error}") from error
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm) as error:
        if passphrase is None and "passphrase" in str(error).lower():
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKeyError(f"{file}: {error}") from error


def _certificates(settings: SshSettings) -> list[PublicBlob]:
    """Return the certificates on the disk.

    CertificateFile names the certificates; without it, they are ``FILE-cert.pub`` of each key file.
    """
    files = settings.certificate_files or tuple(f"{file}-cert.pub" for file in settings.identity_files)
    blobs = [*map(_public_file, files), *map(_public_file, settings.identity_files)]
    return [blob for blob in blobs if blob is not None and blob.key_type.endswith(CERTIFICATE)]


def _from_pkcs8(data: bytes, password: bytes | None) -> paramiko.PKey:
    """Return the key of a PKCS#8 file, which paramiko does not read."""
    loaded = untyped(load_pem_private_key(data, password))
    text = loaded.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    kinds = {RSAPrivateKey: paramiko.RSAKey, EllipticCurvePrivateKey: paramiko.ECDSAKey}
    chosen = next((key for kind, key in kinds.items() if isinstance(loaded, kind)), paramiko.Ed25519Key)
    return untyped(chosen).from_private_key(io.StringIO(text))


# ---------------------------------------------------------------------------------------------------------- offers


@dataclass(frozen=True)
class Offer:
    """A key to log in with, and its description."""

    key: paramiko.PKey
    words: str


def offers(host: str, settings: SshSettings, agent: Agent | None, attempts: KeyAttempts) -> Iterator[Offer]:
    """Yield keys in the order in which they are offered.

    Prompts for passphrases while it is iterated.
    """
    certificates: dict[bytes, list[PublicBlob]] = {}
    for certificate in _certificates(settings):
        certificates.setdefault(plain_blob(certificate.key_blob), []).append(certificate)
    named = {file: blob for file in settings.identity_files if (blob := public_blob(file)) is not None}
    configured = {plain_blob(blob) for blob in named.values()}
    in_agent: set[bytes] = set()
    if agent is not None:
        keys = agent.keys()
        ours = [key for key in keys if plain_blob(key.blob) in configured]
        others = [] if settings.identities_only else [key for key in keys if plain_blob(key.blob) not in configured]
        chosen = [key for key in (*ours, *others) if _is_allowed(settings, key.get_name())]
        signing = [key for key in chosen if not key.get_name().endswith(CERTIFICATE)]
        certified = [
            with_certificate(key, certificate)
            for key in signing
            for certificate in certificates.get(key.blob, [])
            if _is_allowed(settings, certificate.key_type)
            and certificate.key_blob not in {other.blob for other in chosen}
        ]
        for key in (*certified, *chosen):
            attempts.agent += 1
            in_agent.add(plain_blob(key.blob))
            yield Offer(key, f"the agent's {key.comment or key.get_name()}")
    locked: list[str] = []
    for file in settings.identity_files:
        if not os.path.isfile(file) or _public_file(file) is not None:
            continue  # a public key alone names a key of the agent
        if file in named and plain_blob(named[file]) in in_agent:
            continue
        try:
            yield from _file_offers(host, settings, file, certificates, attempts, prompt=False)
        except KeyLockedError:
            locked.append(file)
    for file in locked:
        try:
            yield from _file_offers(host, settings, file, certificates, attempts, prompt=True)
        except KeyLockedError:
            attempts.locked = (*attempts.locked, file)


def _file_offers(
    host: str,
    settings: SshSettings,
    file: str,
    certificates: Mapping[bytes, list[PublicBlob]],
    attempts: KeyAttempts,
    *,
    prompt: bool,
) -> Iterator[Offer]:
    try:
        key = load_key(host, file, prompt=prompt)
    except (UnreadableKeyError, OSError):
        attempts.unreadable = (*attempts.unreadable, file)
        return
    attempts.files = (*attempts.files, file)
    plain = untyped(key)
    # A certificate first: where it is accepted, the plain key usually is not.
    for certificate in certificates.get(key.asbytes(), []):
        if _is_allowed(settings, certificate.key_type):
            plain.public_blob = certificate
            yield Offer(key, file)
    plain.public_blob = None
    if _is_allowed(settings, key.get_name()):
        yield Offer(key, file)


def _is_allowed(settings: SshSettings, kind: str) -> bool:
    """Return True if PubkeyAcceptedAlgorithms allows a kind of key, or of certificate."""
    allowed = settings.algorithms.get("pubkeyacceptedalgorithms")
    names = (
        [kind.replace("ssh-rsa", algorithm) for algorithm in ("rsa-sha2-512", "rsa-sha2-256")]
        if "ssh-rsa" in kind
        else [kind]
    )
    return allowed is None or any(name in allowed for name in names)


def plain_blob(blob: bytes) -> bytes:
    """Return the public key of a certificate, and a plain public key as it is."""
    message = Message(blob)
    kind = message.get_text()
    if not kind.endswith(CERTIFICATE):
        return blob
    message.get_string()  # nonce
    plain = Message()
    plain_kind = kind.removesuffix(CERTIFICATE)
    plain.add_string(plain_kind)
    for _ in range(2 if plain_kind == "ssh-rsa" or plain_kind.startswith("ecdsa-") else 1):
        plain.add_string(message.get_string())
    return plain.asbytes()
