"""Reader of known_hosts like OpenSSH's: patterns, hashed names, revoked keys.

No key that is not in the file is trusted.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". ``@cert-authority`` lines name authorities that sign host certificates
(`host_certificate`); they do not apply to plain keys.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import fnmatch
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeys

from midstream.errors import HostError
from midstream.hosts.ssh.resolved_options import SshSettings, expand

KNOWN, UNKNOWN, CHANGED, REVOKED = "known", "unknown", "changed", "revoked"
REVOKED_MARKER, AUTHORITY_MARKER = "@revoked", "@cert-authority"

_writing = threading.Lock()
COMMAND_TIMEOUT = 30.0  # seconds that KnownHostsCommand may run
REVOCATION_LIST = b"SSHKRL\n\0"


@dataclass(frozen=True)
class Entry:
    """One line of known_hosts.

    ``names`` is its first field, with patterns and hashes; ``blob`` is the public key.
    """

    names: str
    kind: str
    blob: bytes
    marker: str
    file: str
    line: int

    def matches(self, name: str) -> bool:
        """Return True if the entry applies to the name."""
        if self.names.startswith("|1|"):
            # The hash contains its salt: hashing the name with it gives the same text.
            with contextlib.suppress(ValueError, binascii.Error, paramiko.SSHException):
                return HostKeys.hash_host(name, self.names) == self.names
            return False
        is_named = False
        for pattern in self.names.split(","):
            negated = pattern.startswith("!")
            if _matches(name, pattern.removeprefix("!")):
                if negated:
                    return False
                is_named = True
        return is_named


def _matches(name: str, pattern: str) -> bool:
    """Match as OpenSSH, with ``*`` and ``?`` alone.

    Brackets are those of ``[host]:port``.
    """
    plain = pattern.replace("[", "[[]")
    return re.match(fnmatch.translate(plain.lower()), name.lower()) is not None


class KnownHosts:
    """The entries of some files, and of the output of a command.

    Missing files and malformed lines have no entries.
    """

    def __init__(self, files: Iterable[str], printed: str = "") -> None:
        self.entries = [entry for file in files for entry in _read(file)]
        self.entries += _entries(printed, "KnownHostsCommand")

    def of(self, names: Sequence[str]) -> list[Entry]:
        """Return the entries of the first of ``names`` that has any."""
        for name in names:
            entries = [entry for entry in self.entries if entry.marker != AUTHORITY_MARKER and entry.matches(name)]
            if any(entry.marker != REVOKED_MARKER for entry in entries):
                return entries
        return [entry for entry in self.entries if entry.marker == REVOKED_MARKER and any(map(entry.matches, names))]

    def authorities(self, names: Sequence[str]) -> set[bytes]:
        """Return the public keys of the authorities that are trusted for the host."""
        marked = [entry for entry in self.entries if entry.marker == AUTHORITY_MARKER]
        return {entry.blob for entry in marked if any(map(entry.matches, names))} - self._revoked(names)

    def _revoked(self, names: Sequence[str]) -> set[bytes]:
        return {
            entry.blob for entry in self.entries if entry.marker == REVOKED_MARKER and any(map(entry.matches, names))
        }

    def kinds(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the kinds of key that are known of a host."""
        return tuple(dict.fromkeys(entry.kind for entry in self.of(names) if entry.marker != REVOKED_MARKER))

    def verdict(self, names: Sequence[str], key: paramiko.PKey) -> str:
        """Return KNOWN, UNKNOWN, CHANGED or REVOKED for the key that the host sent."""
        entries, blob = self.of(names), key.asbytes()
        if any(entry.marker == REVOKED_MARKER and entry.blob == blob for entry in entries):
            return REVOKED
        valid = [entry for entry in entries if entry.marker != REVOKED_MARKER]
        if not valid:
            return UNKNOWN
        return KNOWN if any(entry.blob == blob for entry in valid) else CHANGED

    def location(self, names: Sequence[str]) -> str:
        """Return ``FILE:LINE`` of the first entry of a host."""
        return next((f"{entry.file}:{entry.line}" for entry in self.of(names)), "")


def _read(file: str) -> list[Entry]:
    try:
        text = Path(file).read_text(errors="replace")
    except OSError:  # missing, or without permission to read: no entry counts
        return []
    return _entries(text, file)


def _entries(text: str, file: str) -> list[Entry]:
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKED_MARKER, AUTHORITY_MARKER):
            continue
        with contextlib.suppress(ValueError, binascii.Error):
            entries.append(Entry(words[0], words[1], base64.b64decode(words[2], validate=True), marker, file, number))
    return entries


def printed_by(settings: SshSettings, key: paramiko.PKey | None = None) -> str:
    """Return the output of KnownHostsCommand; empty without the option.

    ``key`` is the host's; None before it has shown one.

    Raises:
        HostError: The command cannot be run, or does not end.
    """
    if not settings.known_hosts_command:
        return ""
    none = "NONE"
    about = {"I": "HOSTNAME" if key else "ORDER", "f": key.fingerprint if key else none}
    about |= {"t": key.get_name() if key else none, "K": key.get_base64() if key else none}
    argv = [expand(word, {**settings.tokens, **about}) for word in settings.known_hosts_command]
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=COMMAND_TIMEOUT,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{settings.alias}: KnownHostsCommand failed: {error}", f"try: {shlex.join(argv)}") from error


def is_revoked(file: str, key: paramiko.PKey) -> bool:
    """Return True if a file of RevokedHostKeys has the key.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is a key revocation list, which is not supported.
    """
    data = Path(file).read_bytes()
    if data.startswith(REVOCATION_LIST):
        raise ValueError("key revocation lists (KRL) are not supported")
    return key.get_base64().encode() in data.split()


def line_of(name: str, key: paramiko.PKey, *, hashed: bool = False) -> str:
    """Return the known_hosts line of a key."""
    return f"{HostKeys.hash_host(name) if hashed else name} {key.get_name()} {key.get_base64()}"


def remember(file: str, name: str, key: paramiko.PKey, *, hashed: bool = False) -> None:
    """Add a key to a file (mode 0600), unless another connection has just added it."""
    with _writing:
        directory = os.path.dirname(file)
        if directory and not os.path.isdir(directory):
            os.makedirs(directory, mode=0o700)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with open(handle, "r+b", buffering=0) as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # other midstream processes write the same file
            if KnownHosts([file]).verdict([name], key) == KNOWN:
                return
            size = out.seek(0, os.SEEK_END)
            if size:
                out.seek(size - 1)
            # A last line without a newline would merge with ours.
            ended = not size or out.read(1) == b"\n"
            out.write((("" if ended else "\n") + line_of(name, key, hashed=hashed) + "\n").encode())
