"""The directory of midstream's files on this machine, for its owner alone.

Files there may contain secrets: hosts' fields ``env:``, command lines of runs, the operator's key. Others cannot enter
the directory, whatever the umask is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

PRIVATE = 0o700


def state_directory() -> Path:
    """Return `$MIDSTREAM_STATE`, by default `~/.local/state/midstream`."""
    return Path(os.environ.get("MIDSTREAM_STATE") or "~/.local/state/midstream").expanduser()


def migrations_directory() -> Path:
    """Return the directory of the migrations that this machine executes."""
    return state_directory() / "migrations"


def make_directory(path: Path) -> None:
    """Create a directory in the state directory, and those above it.

    Raises:
        OSError: It cannot be created.
    """
    state = state_directory()
    if path == state or state in path.parents:
        if not state.is_dir():
            state.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another process was faster
                state.mkdir(mode=PRIVATE)
        close_state_directory()
    path.mkdir(mode=PRIVATE, parents=True, exist_ok=True)


def close_state_directory() -> None:
    """Let only the owner enter the state directory.

    An earlier version may have created it with a wider mode.
    """
    state = state_directory()
    with contextlib.suppress(OSError):  # it does not exist, or is another user's
        if state.stat().st_mode & 0o077:
            state.chmod(PRIVATE)
