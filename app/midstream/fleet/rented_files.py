"""Files in which SkyPilot and dstack describe the machines that they have rented."""

from __future__ import annotations

from pathlib import Path

from midstream.state_directory import make_directory, state_directory

# Since SkyPilot 0.5.0, and before.
SKYPILOT_DIRECTORIES, DSTACK_FILE = ("~/.sky/generated/ssh", "~/.sky/ssh"), "~/.dstack/ssh/config"


def skypilot_directories() -> list[Path]:
    """Return the directories of SkyPilot's files, the present one first."""
    return [Path(directory).expanduser() for directory in SKYPILOT_DIRECTORIES]


def is_rented(file: Path) -> bool:
    """Return True if the SSH configuration is SkyPilot's or dstack's."""
    return file == Path(DSTACK_FILE).expanduser() or file.parent in skypilot_directories()


def rented_known_hosts(file: Path, alias: str) -> Path | None:
    """Return the file where midstream keeps a rented machine's host key.

    None if neither SkyPilot nor dstack wrote the SSH configuration ``file``. Both programs switch the check of host
    keys off, and name no file for them. Each machine has a file of its own, by its name in the configuration: the
    machines of a cluster in Docker are all ``localhost:10022``, and all pods ``127.0.0.1:22``.
    """
    if not is_rented(file):
        return None
    return own_known_hosts(f"{'skypilot' if file.parent in skypilot_directories() else 'dstack'}-{alias}")


def own_known_hosts(name: str) -> Path:
    """Return midstream's own known_hosts file of this name; create its directory."""
    directory = state_directory().absolute() / "known_hosts"
    make_directory(directory)  # the hint of an unknown key appends to the file
    return directory / name
