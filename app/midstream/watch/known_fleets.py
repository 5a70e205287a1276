"""Hosts of the fleet files that were read last, for the first frame.

They are in `$MIDSTREAM_STATE/fleets.json`. Reading and checking a fleet file takes a fifth of the time to that frame.

A cache: it may be deleted, and a damaged file counts as empty.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from midstream import __version__
from midstream.state_directory import state_directory

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet

FLEETS = 16  # fleet files that are kept, the last read ones
_LARGEST = 4 << 20  # bytes of a file that is read


def fleets_file() -> Path:
    """Return the path of the file."""
    return state_directory() / "fleets.json"


def hosts_of_file(fleet_path: Path) -> dict[str, str] | None:
    """Return the hosts of a fleet file, name -> kind.

    None if they are unknown, or if the file has changed since this version of midstream has read it.
    """
    known = _read().get(os.path.abspath(fleet_path))
    try:
        if not isinstance(known, dict) or known["file"] != _stamp(fleet_path):
            return None
        hosts = known["hosts"]
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
        fleets, key = _read(), os.path.abspath(path)
        entry = {"file": stamp, "hosts": kinds}
        if fleets.pop(key, None) == entry:
            return
        kept = dict([*fleets.items(), (key, entry)][-FLEETS:])
        file = fleets_file()
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(kept, indent=1) + "\n")
        temporary.replace(file)


def _stamp(path: Path) -> list[Any]:
    found = os.stat(path)
    return [found.st_mtime_ns, found.st_size, found.st_ino, __version__]


def _read() -> dict[str, Any]:
    try:
        with fleets_file().open(encoding="utf-8") as file:
            found = json.loads(file.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
