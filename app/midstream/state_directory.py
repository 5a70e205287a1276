"""The directory of midstream's files on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def state_directory() -> Path:
    """Return `$MIDSTREAM_STATE`, by default `~/.local/state/midstream`."""
    return Path(os.environ.get("MIDSTREAM_STATE") or "~/.local/state/midstream").expanduser()
