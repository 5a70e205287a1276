"""Files in which SkyPilot and dstack describe the machines that they have rented."""

from __future__ import annotations

from pathlib import Path

from midstream.state_directory import state_directory

SKYPILOT_DIRECTORY, DSTACK_FILE = "~/.sky/ssh", "~/.dstack/ssh/config"


def rented_known_hosts(file: Path) -> Path | None:
    """Return where midstream keeps the host keys of an SSH configuration's machines; None if it is neither program's.

    Both programs switch the check of host keys off, and name no file for them.
    """
    if file == Path(DSTACK_FILE).expanduser():
        name = "dstack"
    elif file.parent == Path(SKYPILOT_DIRECTORY).expanduser():
        name = f"skypilot-{file.name}"
    else:
        return None
    return state_directory().absolute() / "known_hosts" / name
