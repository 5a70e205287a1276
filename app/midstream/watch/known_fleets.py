"""Hosts of the fleet files that were read last, for the first frame.

File: `$MIDSTREAM_STATE/fleets.json`, a cache: it may be deleted, and a damaged file counts as empty. Reading and
checking a fleet file takes a fifth of the time to that frame.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream import __version__
from midstream.state_directory import state_directory
from midstream.watch.fleet_cache import fleet_key, read_entries, write_entry

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


def fleets_file() -> Path:
    """Return the path of the file."""
    return state_directory() / "fleets.json"


def hosts_of_file(fleet_path: Path) -> dict[str, str] | None:
    """Return the hosts of a fleet file, name -> kind.

    None if they are unknown, or if the file has changed since this version of midstream has read it.
    """
    entry = read_entries(fleets_file()).get(fleet_key(fleet_path))
    try:
        if not isinstance(entry, dict) or entry["file"] != _stamp(fleet_path):
            return None
        hosts = entry["hosts"]
    except (OSError, KeyError):
        return None
    if not isinstance(hosts, dict) or not all(isinstance(kind, str) for kind in hosts.values()):
        return None
    return hosts


def remember_fleet(fleet: Fleet) -> None:
    """Write the hosts of a fleet, unless its file has changed since it was read.

    A fleet with slices has other hosts than its file, and is not kept. A failure is ignored: without the file the first
    frame takes longer.
    """
    if not fleet.path or fleet.has_slices:
        return
    with suppress(OSError, UnicodeDecodeError):
        path = Path(fleet.path).expanduser()
        stamp = _stamp(path)
        if path.read_text() != fleet.text:
            return
        kinds = {name: config.get_choice_name(type(config)) for name, config in fleet.hosts.items()}
        write_entry(fleets_file(), path, {"file": stamp, "hosts": kinds})


def _stamp(path: Path) -> list[Any]:
    status = os.stat(path)
    return [status.st_mtime_ns, status.st_size, status.st_ino, __version__]
