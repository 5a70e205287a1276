"""A JSON file with an entry for each of the fleet files that were used last.

A cache: it may be deleted, and a damaged file counts as empty.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from midstream.state_directory import make_directory

FLEETS = 16  # fleet files that are kept, the last used ones
_LARGEST = 4 << 20  # bytes of a file that is read


def fleet_key(fleet_path: str | Path) -> str:
    """Return the key of a fleet file's entry: its absolute path."""
    return os.path.abspath(os.path.expanduser(fleet_path))


def read_entries(file: Path) -> dict[str, Any]:
    """Return the entries, each below the key of its fleet file."""
    try:
        with file.open(encoding="utf-8") as opened:
            value = json.loads(opened.read(_LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def write_entry(file: Path, fleet_path: str | Path, entry: Any) -> None:
    """Replace the entry of a fleet file. Nothing is written if it is the same.

    The entries that were written first are dropped where the file would have more than is read.

    Raises:
        OSError: The file cannot be written.
    """
    from midstream_core import records  # here, because completion reads entries and imports little

    entries, key = read_entries(file), fleet_key(fleet_path)
    if key in entries and entries.pop(key) == entry:
        return
    entries[key] = entry
    make_directory(file.parent)
    kept = list(entries.items())[-FLEETS:]
    text = json.dumps(dict(kept), indent=1) + "\n"
    while len(text) > _LARGEST and len(kept) > 1:
        del kept[0]
        text = json.dumps(dict(kept), indent=1) + "\n"
    records.write_bytes(str(file), text.encode(), durable=False)
