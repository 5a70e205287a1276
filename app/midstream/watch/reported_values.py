"""Values of a snapshot, built from the JSON that a host reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream.watch.machine import AcceleratorUser, Disk, InfinibandPort
from midstream_core.json_types import ReportLine

MAX_LISTED = 256  # accelerators, processes, disks and ports of a host that are shown


def inventory(line: ReportLine) -> dict[str, Any]:
    """Return fields of a Machine. Fields of a newer probe are ignored."""
    plain = ("system", "kernel", "glibc", "cpu_model", "driver", "cuda", "clock_synchronized")
    lists = {"users": AcceleratorUser, "disks": Disk, "infiniband": InfinibandPort}
    values = {name: line[name] for name in plain if name in line}
    return values | {
        name: tuple(reported(kind, entry) for entry in line[name][:MAX_LISTED])
        for name, kind in lists.items()
        if name in line
    }


def reported(kind: Any, fields_of: Mapping[str, Any]) -> Any:
    """Build a dataclass from JSON.

    Fields of a newer probe are ignored; lists become tuples.
    """
    names = kind.__dataclass_fields__  # `dataclasses.fields` would take as long as the rest
    return kind(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields_of.items()
            if name in names
        }
    )
