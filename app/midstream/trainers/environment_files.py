"""Packages of a run's environment, from the file that its run file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from midstream.errors import UsageError
from midstream.trainers import conda_lock, uv_lock
from midstream.trainers.lock_format import other_lock
from midstream.trainers.requirements_file import with_included
from midstream_host.driver.run_file import MAX_LOCK


def packages_of(file: Path, name: str, read: Callable[[str], str]) -> dict[str, str]:
    """Return the fields of `Environment` that a lock or requirements give.

    Args:
        file: The file, for messages.
        name: How the run file names it.
        read: Reads a file by such a name.

    Raises:
        UsageError: Hosts cannot install from it.
    """
    text = read(name)
    if file.name == uv_lock.NAME:
        return {"requirements": uv_lock.requirements_of(file)}
    try:
        lists = conda_lock.lists_of(text)
    except UsageError as error:
        raise UsageError(f"{file}: {error.message}", error.hint) from None
    if lists is not None:
        return {"conda": lists}
    wrong = other_lock(text)
    if wrong is not None:
        raise UsageError(f"{file} {wrong.what}, which hosts do not install", wrong.hint)
    text = with_included(name, text, read)
    if len(text) > MAX_LOCK:
        raise UsageError(f"{file} has {len(text)} characters, allowed are {MAX_LOCK}")
    return {"requirements": text}
