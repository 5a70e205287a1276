"""Generate the first fleet file: this machine and the hosts of `~/.ssh/config`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from midstream.fleet.rented_files import rented_known_hosts
from midstream.fleet.ssh_config_reader import DEFAULT_SSH_CONFIG, HostEntry, hosts_in

HEADER = """\
# Machines that midstream uses; docs/reference/fleet-file.md describes each field. Remove what you do not train on.
hosts:
  here: {type: local}
"""


def fleet_from_ssh_config(path: Path) -> str:
    """Return a fleet file of `here` and the hosts of the SSH configuration ``path``.

    Each host has one entry. Patterns are left out, `Include` is followed, and a name counts once. Without the file
    there is only `here`. Raises UsageError, with file and line, if the configuration cannot be read.
    """
    entries: dict[str, HostEntry] = {}
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
            # The configuration itself, whichever of its files has the host: each may add options for it.
            if path != Path(DEFAULT_SSH_CONFIG).expanduser():
                fields["ssh_config"] = str(path)
            if known_hosts := rented_known_hosts(entry.file, entry.name):
                fields["known_hosts"] = str(known_hosts)
            words = ", ".join(f"{key}: {_yaml(value)}" for key, value in fields.items())
            lines.append(f"  {_yaml(_free(entry.name, entries))}: {{{words}}}")
    return HEADER + "".join(f"{line}\n" for line in lines)


def _free(name: str, entries: dict[str, HostEntry]) -> str:
    """Return a host's name in the fleet; another for `here`, which is this machine."""
    if name != "here":
        return name
    return next(other for other in ("here-ssh", *(f"here-ssh-{k}" for k in range(2, 99))) if other not in entries)


def _yaml(text: str) -> str:
    """Quote text for YAML, also within braces, where that is necessary."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", text) is not None and yaml.safe_load(text) == text
    return text if plain else json.dumps(text, ensure_ascii=False)
