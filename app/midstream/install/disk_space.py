"""Room for an environment on a host's disk, and what says that there is none."""

from __future__ import annotations

import errno
import os

from midstream.bundled_files import shipped
from midstream.format import size
from midstream.install.errors import LaunchError
from midstream.install.install_progress import read_sizes, wheel_sizes
from midstream_host.machine import checks

SIZES = "locks/sizes.json"
UNPACKED = 2  # bytes on the disk for each byte of the wheels, at least
FILES = 10_000  # of an environment, at least
FULL = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))  # a host's report of a full disk begins with one


def download_bytes(lock: str) -> int:
    """Return the bytes of the wheels of a lock; 0 where their sizes are not known."""
    return sum(wheel_sizes(lock, read_sizes(shipped(SIZES))).values())


def check_space(name: str, facts: checks.HostFacts, download: int) -> None:
    """Check that packages fit below the root of a host.

    Args:
        name: The host.
        facts: What it reports of its root.
        download: Bytes of the wheels; 0 where they are not known.

    Raises:
        LaunchError: They do not fit.
    """
    needed, files = UNPACKED * download, facts.files_free
    if needed > facts.disk_free:
        lack = f"{size(needed)} needed for the engine's packages, {size(facts.disk_free)} free"
    elif download and files is not None and files < FILES:
        lack = f"{FILES} files (inodes) needed for the engine's packages, {files} free"
    else:
        return
    raise LaunchError(
        f"{name}: no space left at {facts.root}: {lack}", f"free space on {name}, or set root: in the fleet file"
    )
