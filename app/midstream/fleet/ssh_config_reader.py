"""Reader of SSH configurations: their hosts, and the files that they include."""

from __future__ import annotations

import glob
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from midstream.errors import UsageError

DEFAULT_SSH_CONFIG = "~/.ssh/config"
MAX_INCLUDE_DEPTH = 16  # as OpenSSH


@dataclass
class HostEntry:
    """One name after `Host`, and the fields of its block that matter here."""

    name: str
    file: Path
    user: str = ""


def hosts_in(file: Path, base: Path, depth: int = 0) -> Iterator[HostEntry]:
    """Yield hosts in OpenSSH's order. ``base``: directory of relative Includes."""
    block: list[HostEntry] = []
    for keyword, words in _lines(file):
        if keyword in ("host", "match"):
            block = [HostEntry(name, file) for name in words if keyword == "host" and not set(name) & set("*?!")]
            yield from block  # the following lines of the block complete it
        elif keyword == "user" and words:
            for entry in block:
                entry.user = entry.user or words[0]
        elif keyword == "include" and depth < MAX_INCLUDE_DEPTH:
            for included in _matches(words, base):
                yield from hosts_in(included, base, depth + 1)


def included_files(file: Path) -> set[Path]:
    """Return the files that a configuration includes, also indirectly, as real paths."""
    included: set[Path] = set()
    waiting = [file]
    while waiting:
        words = [word for keyword, words in _lines(waiting.pop()) if keyword == "include" for word in words]
        new = {path.resolve() for path in _matches(words, file.parent)} - included
        included |= new
        waiting += new
    return included


def _matches(patterns: list[str], base: Path) -> list[Path]:
    """Return the files that an Include names; relative patterns begin at ``base``."""
    full = [os.path.join(base, os.path.expanduser(pattern)) for pattern in patterns]
    return [Path(path) for pattern in full for path in sorted(glob.glob(pattern)) if not os.path.isdir(path)]


def _lines(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (keyword in lower case, arguments) of each line; none of a missing file."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", "correct that, or write the fleet file by hand"
        ) from error
    for number, line in enumerate(text.splitlines(), 1):
        yield _words(line, f"{file}:{number}")


def _words(line: str, where: str) -> tuple[str, list[str]]:
    """Split a line into (keyword in lower case, arguments).

    The line is ``Keyword arguments`` or ``Keyword=arguments``.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return "", []
    keyword, rest = re.fullmatch(r"(\w*)[\s=]*(.*)", line).groups()  # type: ignore[union-attr]  # matches any line
    if keyword.lower() not in ("host", "match", "user", "include"):
        return keyword.lower(), []
    try:
        return keyword.lower(), shlex.split(rest, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}", "correct the quotes there") from error
