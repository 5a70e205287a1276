"""known_hosts, as OpenSSH reads it: patterns, hashed names, revoked keys. Nothing is trusted that does not stand there.

Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". ``@cert-authority`` lines name who vouches for hosts by certificates
(``host_certificate``); they say nothing of a plain key.
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
REVOKES, AUTHORITY = "@revoked", "@cert-authority"

_writing = threading.Lock()


@dataclass(frozen=True)
class Entry:
    """One line. ``names`` is what the line says, patterns and hashes included; ``blob`` the public key."""

    names: str
    kind: str
    blob: bytes
    marker: str
    file: str
    line: int

    def speaks_of(self, name: str) -> bool:
        if self.names.startswith("|1|"):
            # Hashed with a salt of its own: the name is hashed with that salt.
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
    """OpenSSH knows ``*`` and ``?`` alone; brackets are those of ``[host]:port``."""
    plain = pattern.replace("[", "[[]")
    return re.match(fnmatch.translate(plain.lower()), name.lower()) is not None


class KnownHosts:
    """The entries of some files. A file that is missing has none; a line that cannot be read is none."""

    def __init__(self, files: Iterable[str]):
        self.entries = [entry for file in files for entry in _read(file)]

    def of(self, names: Sequence[str]) -> list[Entry]:
        """Entries for the first of ``names`` that is known."""
        for name in names:
            found = [entry for entry in self.entries if entry.marker != AUTHORITY and entry.speaks_of(name)]
            if any(entry.marker != REVOKES for entry in found):
                return found
        return [entry for entry in self.entries if entry.marker == REVOKES and any(map(entry.speaks_of, names))]

    def authorities(self, names: Sequence[str]) -> set[bytes]:
        """Public keys whose certificates are believed for the host."""
        marked = [entry for entry in self.entries if entry.marker == AUTHORITY]
        return {entry.blob for entry in marked if any(map(entry.speaks_of, names))} - self._revoked(names)

    def _revoked(self, names: Sequence[str]) -> set[bytes]:
        return {entry.blob for entry in self.entries if entry.marker == REVOKES and any(map(entry.speaks_of, names))}

    def kinds(self, names: Sequence[str]) -> tuple[str, ...]:
        """The kinds of key that are known of a host."""
        return tuple(dict.fromkeys(entry.kind for entry in self.of(names) if entry.marker != REVOKES))

    def verdict(self, names: Sequence[str], key: paramiko.PKey) -> str:
        """A host that is known by any key has to show one of its own."""
        entries, blob = self.of(names), key.asbytes()
        if any(entry.marker == REVOKES and entry.blob == blob for entry in entries):
            return REVOKED
        known = [entry for entry in entries if entry.marker != REVOKES]
        if not known:
            return UNKNOWN
        return KNOWN if any(entry.blob == blob for entry in known) else CHANGED

    def place(self, names: Sequence[str]) -> str:
        """``FILE:LINE`` of the first entry of a host."""
        return next((f"{entry.file}:{entry.line}" for entry in self.of(names)), "")


def _read(file: str) -> list[Entry]:
    try:
        text = Path(file).read_text(errors="replace")
    except OSError:  # missing, as on a fresh machine; or not ours to read, and then nothing in it counts
        return []
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKES, AUTHORITY):
            continue
        with contextlib.suppress(ValueError, binascii.Error):
            entries.append(Entry(words[0], words[1], base64.b64decode(words[2], validate=True), marker, file, number))
    return entries


def line_of(name: str, key: paramiko.PKey, *, hashed: bool = False) -> str:
    """The line that makes a key known."""
    return f"{HostKeys.hash_host(name) if hashed else name} {key.get_name()} {key.get_base64()}"


def remember(file: str, name: str, key: paramiko.PKey, *, hashed: bool = False) -> None:
    """Add a line to a file, which only its owner can write; none where another connection has just added it."""
    with _writing:
        directory = os.path.dirname(file)
        if directory and not os.path.isdir(directory):
            os.makedirs(directory, mode=0o700)
        handle = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with open(handle, "r+b", buffering=0) as out:
            fcntl.flock(out, fcntl.LOCK_EX)  # other programs of ours write the same file
            if KnownHosts([file]).verdict([name], key) == KNOWN:
                return
            size = out.seek(0, os.SEEK_END)
            if size:
                out.seek(size - 1)
            # A last line without an end would swallow ours.
            ended = not size or out.read(1) == b"\n"
            out.write((("" if ended else "\n") + line_of(name, key, hashed=hashed) + "\n").encode())
