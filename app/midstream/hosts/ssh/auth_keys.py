"""Login keys: the agent's, key files, OpenSSH certificates; their passphrases.

The order is OpenSSH's: the configured keys of the agent, its other keys (unless IdentitiesOnly), then key files.
Encrypted files come last, so that the user is prompted for a passphrase only if no other key is accepted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.agent import AgentKey, AgentSSH
from paramiko.message import Message
from paramiko.pkey import PublicBlob, UnknownKeyType

from midstream.hosts.prompter import PROMPTS
from midstream.hosts.ssh.settings import SshSettings

AGENT_TIMEOUT = 60.0  # seconds; an agent may ask its user before it signs
DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
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
        words += [f"{each} is locked" for each in self.locked]
        words += [f"{each} cannot be read" for each in self.unreadable]
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
            cast(Any, self)._connect(self._sock)
        except BaseException:
            self._sock.close()
            raise

    def keys(self) -> list[AgentKey]:
        """Return the agent's keys; certificates are offered as such.

        paramiko would offer the plain keys of the certificates.
        """
        found = list(self.get_keys())
        for key in found:
            if key.get_name().endswith(CERTIFICATE):
                cast(Any, key).inner_key = None
                cast(Any, key).public_blob = PublicBlob(key.get_name(), key.blob)
        return found

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


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
    """Return the public key of an encrypted key file.

    It is read from ``FILE.pub``, or from OpenSSH's unencrypted header.
    """
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"{file}.pub", encoding="utf-8") as text:
        return base64.b64decode(text.read().split()[1])
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
    return None


def load_key(host: str, file: str, *, prompt: bool) -> paramiko.PKey:
    """Load a private key file.

    Raises KeyLockedError if it is encrypted and no passphrase opens it, UnreadableKeyError if it is malformed.
    """
    mark = (file, os.stat(file).st_mtime_ns)
    if (known := _opened.get(mark)) is not None:
        return known
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
    try:
        return paramiko.PKey.from_path(file, cast(Any, passphrase.encode()) if passphrase else None)
    except (paramiko.PasswordRequiredException, TypeError) as error:
        if passphrase is None:
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKeyError(f"{file}: {error}") from error
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm) as error:
        if passphrase is None and "passphrase" in str(error).lower():
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKeyError(f"{file}: {error}") from error


def _certificates(settings: SshSettings, file: str, key: paramiko.PKey) -> Iterator[str]:
    """Yield the certificate files for this key.

    They are ``FILE-cert.pub``, and files that CertificateFile names.
    """
    for each in (f"{file}-cert.pub", *settings.certificate_files):
        try:
            blob = PublicBlob.from_file(each)
        except (OSError, ValueError):
            continue
        message = Message(blob.key_blob)
        message.get_string()  # the certificate's kind
        message.get_string()  # its nonce
        plain = Message(key.asbytes())
        plain.get_string()
        # After the nonce a certificate has the fields of the public key, as the plain key does after its kind.
        fields = plain.get_remainder()
        if message.get_remainder().startswith(fields):
            yield each


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
    named = settings.identity_files or tuple(map(os.path.expanduser, DEFAULT_FILES))
    files = [each for each in named if os.path.isfile(each)]
    # A public key alone names a key of the agent.
    configured = {blob for file in named if (blob := public_blob(file)) is not None}
    in_agent: set[bytes] = set()
    if agent is not None:
        keys = agent.keys()
        ours = [key for key in keys if _plain_blob(key) in configured]
        others = [] if settings.identities_only else [key for key in keys if _plain_blob(key) not in configured]
        for key in (*ours, *others):
            attempts.agent += 1
            in_agent.add(_plain_blob(key))
            yield Offer(key, f"the agent's {key.comment or key.get_name()}")
    left = [file for file in files if public_blob(file) not in in_agent]
    locked: list[str] = []
    for file in left:
        try:
            yield from _file_offers(host, settings, file, attempts, prompt=False)
        except KeyLockedError:
            locked.append(file)
    for file in locked:
        try:
            yield from _file_offers(host, settings, file, attempts, prompt=True)
        except KeyLockedError:
            attempts.locked = (*attempts.locked, file)


def _file_offers(
    host: str, settings: SshSettings, file: str, attempts: KeyAttempts, *, prompt: bool
) -> Iterator[Offer]:
    try:
        key = load_key(host, file, prompt=prompt)
    except (UnreadableKeyError, OSError):
        attempts.unreadable = (*attempts.unreadable, file)
        return
    attempts.files = (*attempts.files, file)
    plain = cast(Any, key)
    # A certificate first: where it is accepted, the plain key usually is not.
    for certificate in _certificates(settings, file, key):
        plain.public_blob = None
        key.load_certificate(certificate)
        yield Offer(key, certificate)
    plain.public_blob = None
    yield Offer(key, file)


def _plain_blob(key: AgentKey) -> bytes:
    """Return the public key of an agent's key; of a certificate, the certified key."""
    if not key.get_name().endswith(CERTIFICATE):
        return key.blob
    message = Message(key.blob)
    kind = message.get_text()
    message.get_string()  # nonce
    plain = Message()
    plain.add_string(kind.removesuffix(CERTIFICATE))
    plain_kind = kind.removesuffix(CERTIFICATE)
    for _ in range(2 if plain_kind == "ssh-rsa" or plain_kind.startswith("ecdsa-") else 1):
        plain.add_string(message.get_string())
    return plain.asbytes()
