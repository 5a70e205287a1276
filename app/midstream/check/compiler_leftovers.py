"""Compilers that comparisons have installed on this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from midstream.check.fleet_leftovers import AnyLeftover, FoundLeftover, kept_unless_agreed
from midstream.state_directory import state_directory

HERE = "this machine"
KIND = "compilers of --compare"  # the next comparison installs them again


def compilers_directory() -> Path:
    """Return where comparisons install engine and compilers on this machine."""
    return state_directory() / "compilers"


def find_compiler_leftovers(*, remove: bool, agreed: Collection[AnyLeftover] | None) -> Iterator[FoundLeftover]:
    """Yield the installed compilers; remove them where that was agreed to."""
    directory = compilers_directory()
    if not directory.is_dir():
        return
    size, changed = _measured(directory)
    kept = "" if not _is_used(directory) else "a comparison runs"
    leftover = FoundLeftover(HERE, "", str(directory), KIND, size, kept, changed=changed)
    if not remove:
        yield leftover
        return
    kept = kept or kept_unless_agreed(leftover, agreed)
    if not kept:
        shutil.rmtree(directory, ignore_errors=True)
    removed = not kept and not directory.exists()
    yield FoundLeftover(
        HERE, "", str(directory), KIND, size, kept or ("" if removed else "it could not be removed"), removed, changed
    )


def _measured(directory: Path) -> tuple[int, float]:
    """Return the bytes of a directory's files, and when it was last changed itself."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue  # removed during the walk
    return total, directory.stat().st_mtime


def _is_used(directory: Path) -> bool:
    """Return whether a process of this machine runs a program of this directory."""
    prefix = f"{directory}/"
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if prefix.encode() in (entry / "cmdline").read_bytes():
                return True
        except OSError:
            continue  # it has ended, or belongs to another user
    return False
