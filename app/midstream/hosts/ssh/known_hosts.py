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
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeys

KNOWN, UNKNOWN, CHANGED, REVOKED = "known", "unknown", "changed", "revoked"
REVOKED_MARKER, AUTHORITY_MARKER = "@revoked", "@cert-authority"

_writing = threading.Lock()


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
        found = False
        for pattern in self.names.split(","):
            negated = pattern.startswith("!")
            if _matches(name, pattern.removeprefix("!")):
                if negated:
                    return False
                found = True
        return found


def _matches(name: str, pattern: str) -> bool:
    """Match as OpenSSH, with ``*`` and ``?`` alone.

    Brackets are those of ``[host]:port``.
    """
    plain = pattern.replace("[", "[[]")
    return re.match(fnmatch.translate(plain.lower()), name.lower()) is not None


class KnownHosts:
    """The entries of some files. Missing files and malformed lines have no entries."""

    def __init__(self, files: Iterable[str]) -> None:
        self.entries = [entry for file in files for entry in _read(file)]

    def of(self, names: Sequence[str]) -> list[Entry]:
        """Return the entries of the first of ``names`` that has any."""
        for name in names:
            found = [entry for entry in self.entries if entry.marker != AUTHORITY_MARKER and entry.matches(name)]
            if any(entry.marker != REVOKED_MARKER for entry in found):
                return found
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
        known = [entry for entry in entries if entry.marker != REVOKED_MARKER]
        if not known:
            return UNKNOWN
        return KNOWN if any(entry.blob == blob for entry in known) else CHANGED

    def location(self, names: Sequence[str]) -> str:
        """Return ``FILE:LINE`` of the first entry of a host."""
        return next((f"{entry.file}:{entry.line}" for entry in self.of(names)), "")


def _read(file: str) -> list[Entry]:
    try:
        text = Path(file).read_text(errors="replace")
    except OSError:  # missing, or without permission to read: no entry counts
        return []
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKED_MARKER, AUTHORITY_MARKER):
            continue
        with contextlib.suppress(ValueError, binascii.Error):
            entries.append(Entry(words[0], words[1], base64.b64decode(words[2], validate=True), marker, file, number))
    return entries


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
