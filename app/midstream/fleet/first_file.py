"""The first fleet file: this machine and the hosts that `~/.ssh/config` names."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from midstream.errors import UsageError

DEFAULT_SSH_CONFIG = "~/.ssh/config"
DEPTH = 16  # of Include in Include, as in OpenSSH

HEADER = """\
# The machines that midstream knows; docs/hosts.md tells every field. Take out what you do not train on.
hosts:
  here: {type: local}
"""


@dataclass
class _Entry:
    """One name after `Host`, with what its block says of interest."""

    name: str
    file: Path
    user: str = ""


def fleet_from_ssh_config(path: Path) -> str:
    """The text of a fleet file: `here`, and one entry for each host that the SSH configuration at ``path`` names.

    Patterns are no hosts, `Include` is followed in place, and a name counts once. UsageError, with file and line, where
    the configuration cannot be read. Without the file, only `here`.
    """
    entries: dict[str, _Entry] = {}
    for entry in _entries(path, path.parent):
        entries.setdefault(entry.name, entry)
    lines = []
    for entry in entries.values():
        if entry.user == "git":
            lines.append(f"  # {entry.name}: logs in as git, which is a code forge")
        elif re.search(r"[@:\[\]]", entry.name):
            lines.append(f"  # {entry.name}: an address in the fleet file is [user@]name[:port]; give it a plain alias")
        else:
            fields = {"type": "ssh", "address": entry.name}
            # paramiko follows no Include: an entry names the file that its host stands in.
            if entry.file != Path(DEFAULT_SSH_CONFIG).expanduser():
                fields["ssh_config"] = str(entry.file)
            words = ", ".join(f"{key}: {_yaml(value)}" for key, value in fields.items())
            lines.append(f"  {_yaml(_free(entry.name, entries))}: {{{words}}}")
    return HEADER + "".join(f"{line}\n" for line in lines)


def _free(name: str, entries: dict[str, _Entry]) -> str:
    """`here` is this machine: a host of that alias needs another name in the fleet."""
    if name != "here":
        return name
    return next(other for other in ("here-ssh", *(f"here-ssh-{k}" for k in range(2, 99))) if other not in entries)


def _yaml(text: str) -> str:
    """The text as YAML reads it back as the same text, within braces too."""
    import yaml

    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) is not None and yaml.safe_load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)


def _entries(file: Path, base: Path, depth: int = 0) -> Iterator[_Entry]:
    """Hosts in the order in which OpenSSH reads them. ``base``: what relative Includes are relative to."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", "mend that, or write the fleet file by hand"
        ) from error
    block: list[_Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        keyword, words = _words(line, f"{file}:{number}")
        if keyword in ("host", "match"):
            block = [_Entry(name, file) for name in words if keyword == "host" and not set(name) & set("*?!")]
            yield from block  # the lines below the name still fill it in
        elif keyword == "user" and words:
            for entry in block:
                entry.user = entry.user or words[0]
        elif keyword == "include" and depth < DEPTH:
            for pattern in words:
                full = os.path.join(base, os.path.expanduser(pattern))
                for found in sorted(glob.glob(full)):
                    yield from _entries(Path(found), base, depth + 1)


def _words(line: str, where: str) -> tuple[str, list[str]]:
    """``Keyword arguments`` or ``Keyword=arguments`` -> (keyword in lower case, arguments)."""
    line = line.strip()
    if not line or line.startswith("#"):
        return "", []
    keyword, rest = re.fullmatch(r"(\w*)[\s=]*(.*)", line).groups()  # type: ignore[union-attr]  # matches any line
    if keyword.lower() not in ("host", "match", "user", "include"):
        return keyword.lower(), []
    try:
        return keyword.lower(), shlex.split(rest, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: {error}", "mend the quotes there") from error
