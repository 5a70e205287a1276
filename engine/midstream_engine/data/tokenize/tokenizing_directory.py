"""The directory of unfinished tokenizing, used by one process at a time.

The next process continues in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterator

log = logging.getLogger(__name__)
_WORK = ".tokenizing-"
_ABANDONED = 14 * 86400.0  # seconds after which unfinished work is removed


@contextlib.contextmanager
def tokenizing_directory(data_root: str, name: str) -> Iterator[str]:
    """Open the directory of one request's finished units, as a context manager.

    One process at a time has the directory. After a process that failed or was killed the next one continues with it.
    The directory is removed once the cache is built.
    """
    os.makedirs(data_root, exist_ok=True)
    _remove_abandoned(data_root)
    directory = os.path.join(data_root, f"{_WORK}{name}")
    while True:
        try:
            os.makedirs(directory, exist_ok=True)
            descriptor = os.open(lock_file(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):  # its owner is removing it
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("waiting for another process that tokenizes the same text")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _still(directory, descriptor):  # the previous owner has removed it
                continue
            for leftover in os.listdir(directory):
                if leftover.endswith(".tmp"):
                    os.unlink(os.path.join(directory, leftover))
            yield directory
            _remove(directory)
            return
        finally:
            os.close(descriptor)


def lock_file(directory: str) -> str:
    """Return the path of the lock, a separate file.

    Network file systems lock only files that are open for writing.
    """
    return os.path.join(directory, ".lock")


def _still(directory: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(lock_file(directory)), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove(directory: str) -> None:
    """Remove a directory that this process has locked."""
    # Renamed first: no process finds it partly removed. Hosts that share the directory may have the same pids.
    done = f"{directory}.{secrets.token_hex(8)}"
    os.rename(directory, done)
    shutil.rmtree(done, ignore_errors=True)


def _remove_abandoned(data_root: str) -> None:
    for name in os.listdir(data_root):
        if not name.startswith(_WORK):
            continue
        directory = os.path.join(data_root, name)
        try:
            if time.time() - os.stat(directory).st_mtime < _ABANDONED:
                continue
            descriptor = os.open(lock_file(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # removed by its owner
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _still(directory, descriptor):
                _remove(directory)
        except BlockingIOError:
            log.debug("%s is in use", directory)
        finally:
            os.close(descriptor)
