"""Generate the first fleet file: this machine and the hosts of `~/.ssh/config`."""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from midstream.errors import UsageError
from midstream.fleet.rented_files import rented_known_hosts

DEFAULT_SSH_CONFIG = "~/.ssh/config"
MAX_INCLUDE_DEPTH = 16  # as OpenSSH

HEADER = """\
# Machines that midstream uses; docs/reference/fleet-file.md describes each field. Remove what you do not train on.
hosts:
  here: {type: local}
"""


@dataclass
class _Entry:
    """One name after `Host`, and the fields of its block that matter here."""

    name: str
    file: Path
    user: str = ""


def fleet_from_ssh_config(path: Path) -> str:
    """Return a fleet file of `here` and the hosts of an SSH configuration.

    It has one entry for each host of the SSH configuration at ``path``.

    Patterns are left out, `Include` is followed, and a name counts once. Without the file there is only `here`.
    Raises UsageError, with file and line, if the configuration cannot be read.
    """
    entries: dict[str, _Entry] = {}
    for entry in hosts_in(path, path.parent):
        entries.setdefault(entry.name, entry)
    lines = []
    for entry in entries.values():
        if entry.user == "git":
            lines.append(f"  # {entry.name}: logs in as git, which is a code forge")
        elif re.search(r"[@:\[\]]", entry.name):
            lines.append(f"  # {entry.name}: an address in the fleet file is [user@]name[:port]; give it a plain alias")
        else:
            fields = {"type": "ssh", "address": entry.name}
            # paramiko does not follow Include: an entry names the file that contains its host.
            if entry.file != Path(DEFAULT_SSH_CONFIG).expanduser():
                fields["ssh_config"] = str(entry.file)
            if known_hosts := rented_known_hosts(entry.file, entry.name):
                fields["known_hosts"] = str(known_hosts)
            words = ", ".join(f"{key}: {_yaml(value)}" for key, value in fields.items())
            lines.append(f"  {_yaml(_free(entry.name, entries))}: {{{words}}}")
    return HEADER + "".join(f"{line}\n" for line in lines)


def _free(name: str, entries: dict[str, _Entry]) -> str:
    """Return the name of a host in the fleet, another one if it is `here`.

    `here` is this machine, so a host of that alias gets another name.
    """
    if name != "here":
        return name
    return next(other for other in ("here-ssh", *(f"here-ssh-{k}" for k in range(2, 99))) if other not in entries)


def _yaml(text: str) -> str:
    """Quote text for YAML, also within braces, where that is necessary."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) is not None and yaml.safe_load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)


def hosts_in(file: Path, base: Path, depth: int = 0) -> Iterator[_Entry]:
    """Yield hosts in OpenSSH's order. ``base``: directory of relative Includes."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror}", "correct that, or write the fleet file by hand"
        ) from error
    block: list[_Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        keyword, words = _words(line, f"{file}:{number}")
        if keyword in ("host", "match"):
            block = [_Entry(name, file) for name in words if keyword == "host" and not set(name) & set("*?!")]
            yield from block  # the following lines of the block complete it
        elif keyword == "user" and words:
            for entry in block:
                entry.user = entry.user or words[0]
        elif keyword == "include" and depth < MAX_INCLUDE_DEPTH:
            for pattern in words:
                full = os.path.join(base, os.path.expanduser(pattern))
                for found in sorted(glob.glob(full)):
                    yield from hosts_in(Path(found), base, depth + 1)


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
