"""Files in which SkyPilot and dstack describe the machines that they have rented."""

from __future__ import annotations

from pathlib import Path

from midstream.state_directory import state_directory

SKYPILOT_DIRECTORY, DSTACK_FILE = "~/.sky/ssh", "~/.dstack/ssh/config"


def rented_known_hosts(file: Path, alias: str) -> Path | None:
    """Return the file where midstream keeps the host key of a machine.

    It is None if the SSH configuration is neither program's.

    Both programs switch the check of host keys off, and name no file for them. Of dstack each host has a file of its
    own: in all runs the container is ``localhost`` behind its machine.
    """
    if file == Path(DSTACK_FILE).expanduser():
        name = f"dstack-{alias}"
    elif file.parent == Path(SKYPILOT_DIRECTORY).expanduser():
        name = f"skypilot-{file.name}"
    else:
        return None
    directory = state_directory().absolute() / "known_hosts"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)  # the hint of an unknown key appends to the file
    return directory / name
