"""Proving who we are: the agent's keys, key files, OpenSSH certificates, and passphrases asked for once.

The order is OpenSSH's: what the agent has of the configured keys, what else it has (unless IdentitiesOnly), then the
files. Files that are locked come last: a person is asked only where nothing else opens the door.
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

AGENT_TIMEOUT = 60.0  # seconds: an agent may ask its owner before it signs
DEFAULT_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
CERTIFICATE = "-cert-v01@openssh.com"


class Locked(Exception):
    """A key file is encrypted and nobody said its passphrase."""

    def __init__(self, file: str):
        super().__init__(file)
        self.file = file


class UnreadableKey(Exception):
    """A key file is none, or of a kind that paramiko does not know."""


@dataclass
class Tried:
    """What was offered, for the error that a person reads."""

    agent: int = 0  # keys of the agent
    files: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def text(self) -> str:
        words = [*self.files]
        if self.agent:
            words.append(f"{self.agent} of the agent")
        words += [f"{each} is locked" for each in self.locked]
        words += [f"{each} cannot be read" for each in self.unreadable]
        return ", ".join(words) or "none: there is no agent, and no key file"


# ------------------------------------------------------------------------------------------------------ the agent


class Agent(AgentSSH):
    """The agent behind one socket. paramiko's own knows only $SSH_AUTH_SOCK."""

    def __init__(self, path: str):
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
        """Certificates sign as what they are; paramiko would offer the plain key that is in them."""
        found = list(self.get_keys())
        for key in found:
            if key.get_name().endswith(CERTIFICATE):
                cast(Any, key).inner_key = None
                cast(Any, key).public_blob = PublicBlob(key.get_name(), key.blob)
        return found

    def close(self) -> None:
        self._sock.close()


def open_agent(path: str | None) -> Agent | None:
    """The agent behind the socket; None where there is none that answers."""
    if path is None:
        return None
    try:
        return Agent(path)
    except (OSError, paramiko.SSHException):
        return None


# ---------------------------------------------------------------------------------------------------------- files

_opened: dict[tuple[str, int], paramiko.PKey] = {}  # keys whose passphrase was said: reconnecting does not ask again
_opening = threading.Lock()


def public_blob(file: str) -> bytes | None:
    """The public key of a key file without its passphrase: from ``FILE.pub``, or from the head of OpenSSH's format."""
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
            message.get_int()  # how many keys
            return message.get_string()
    return None


def load_key(host: str, file: str, *, ask: bool) -> paramiko.PKey:
    """The private key of a file. Locked where it has a passphrase that is not known; UnreadableKey."""
    mark = (file, os.stat(file).st_mtime_ns)
    if (known := _opened.get(mark)) is not None:
        return known
    try:
        return _from_file(file, None)
    except paramiko.PasswordRequiredException:
        if not ask:
            raise Locked(file) from None
    key = PROMPTS.unlock(host, file, lambda passphrase: _opened.get(mark) or _unlocked(file, passphrase))
    if key is None:
        raise Locked(file)
    with _opening:
        _opened[mark] = key
    return key


def _unlocked(file: str, passphrase: str) -> paramiko.PKey | None:
    """None where the passphrase is another."""
    try:
        return _from_file(file, passphrase)
    except (paramiko.PasswordRequiredException, UnreadableKey):
        return None


def _from_file(file: str, passphrase: str | None) -> paramiko.PKey:
    try:
        return paramiko.PKey.from_path(file, cast(Any, passphrase.encode()) if passphrase else None)
    except (paramiko.PasswordRequiredException, TypeError) as error:
        if passphrase is None:
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKey(f"{file}: {error}") from error
    except (ValueError, paramiko.SSHException, UnknownKeyType, UnsupportedAlgorithm) as error:
        if passphrase is None and "passphrase" in str(error).lower():
            raise paramiko.PasswordRequiredException(file) from error
        raise UnreadableKey(f"{file}: {error}") from error


def _certificates(settings: SshSettings, file: str, key: paramiko.PKey) -> Iterator[str]:
    """Files with certificates for this key: ``FILE-cert.pub``, and those that CertificateFile names."""
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
        # After the nonce a certificate holds the fields of the public key, as the plain key does after its kind.
        fields = plain.get_remainder()
        if message.get_remainder().startswith(fields):
            yield each


# ---------------------------------------------------------------------------------------------------------- offers


@dataclass(frozen=True)
class Offer:
    """A key that may open the door."""

    key: paramiko.PKey
    words: str


def offers(host: str, settings: SshSettings, agent: Agent | None, tried: Tried) -> Iterator[Offer]:
    """Keys in the order that they are offered. A person is asked only as far as this is iterated."""
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
            tried.agent += 1
            in_agent.add(_plain_blob(key))
            yield Offer(key, f"the agent's {key.comment or key.get_name()}")
    left = [file for file in files if public_blob(file) not in in_agent]
    locked: list[str] = []
    for file in left:
        try:
            yield from _file_offers(host, settings, file, tried, ask=False)
        except Locked:
            locked.append(file)
    for file in locked:
        try:
            yield from _file_offers(host, settings, file, tried, ask=True)
        except Locked:
            tried.locked = (*tried.locked, file)


def _file_offers(host: str, settings: SshSettings, file: str, tried: Tried, *, ask: bool) -> Iterator[Offer]:
    try:
        key = load_key(host, file, ask=ask)
    except (UnreadableKey, OSError):
        tried.unreadable = (*tried.unreadable, file)
        return
    tried.files = (*tried.files, file)
    plain = cast(Any, key)
    # A certificate first: where it is accepted, the plain key usually is not.
    for certificate in _certificates(settings, file, key):
        plain.public_blob = None
        key.load_certificate(certificate)
        yield Offer(key, certificate)
    plain.public_blob = None
    yield Offer(key, file)


def _plain_blob(key: AgentKey) -> bytes:
    """The public key of what the agent holds; of a certificate, that of the key that it certifies."""
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
