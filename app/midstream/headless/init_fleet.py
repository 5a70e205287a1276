"""`--init`: write a fleet file."""

from __future__ import annotations

from pathlib import Path

from midstream.errors import Exit, UsageError
from midstream.json_events.fleet_events import FleetEvent
from midstream.output import Output
from midstream_core import records


def init(path: str | None, output: Output) -> int:
    """Write a fleet file from ~/.ssh/config; never over an existing one."""
    from midstream.fleet.fleet_path import fleet_path
    from midstream.fleet.initial_fleet_file import fleet_from_ssh_config

    file = fleet_path(path)
    if file.exists():
        raise UsageError(f"{file} already exists", "edit it, or name another with --fleet FILE")
    text = fleet_from_ssh_config(Path("~/.ssh/config").expanduser())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        records.write_bytes(str(file), text.encode())  # complete or absent: an empty file would never be replaced
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}", "name another with --fleet FILE") from error
    output.event(FleetEvent(path=str(file)), str(file))
    output.message(f"wrote {file}: read it, then run midstream --status")
    return Exit.DONE
