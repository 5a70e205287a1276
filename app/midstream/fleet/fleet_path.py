"""Path of the fleet file."""

from __future__ import annotations

import os
from pathlib import Path


def default_fleet_path() -> Path:
    """Return `$MIDSTREAM_FLEET`, by default `~/.config/midstream/fleet.yaml`."""
    return Path(os.environ.get("MIDSTREAM_FLEET") or "~/.config/midstream/fleet.yaml").expanduser()


def fleet_path(path: str | Path | None) -> Path:
    """Return the path that is meant by ``--fleet``, or the default."""
    return Path(path).expanduser() if path else default_fleet_path()
