"""The directory of unfinished tokenizing: one program at a time has it, and the next one goes on in it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import time
from collections.abc import Iterator

log = logging.getLogger(__name__)
_WORK = ".tokenizing-"
_FORGOTTEN = 14 * 86400.0  # seconds after which unfinished work that nobody took up again is removed


@contextlib.contextmanager
def working_directory(place: str, name: str) -> Iterator[str]:
    """Where finished units of one request lie until the cache is built. One program at a time has it; it stays where
    the program fails or is killed, so that the next one goes on."""
    os.makedirs(place, exist_ok=True)
    _remove_forgotten(place)
    directory = os.path.join(place, f"{_WORK}{name}")
    while True:
        try:
            os.makedirs(directory, exist_ok=True)
            descriptor = os.open(lock_file(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):  # whoever had it removes it just now
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another program tokenizes the same text: waiting for it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _still(directory, descriptor):  # the one before was done with it
                continue
            for left in os.listdir(directory):
                if left.endswith(".tmp"):
                    os.unlink(os.path.join(directory, left))
            yield directory
            done = f"{directory}.{os.getpid()}"  # gone at once: nobody finds it half removed
            os.rename(directory, done)
            shutil.rmtree(done, ignore_errors=True)
            return
        finally:
            os.close(descriptor)


def lock_file(directory: str) -> str:
    """A file of its own: network file systems lock nothing that is not open for writing."""
    return os.path.join(directory, ".lock")


def _still(directory: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(lock_file(directory)), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_forgotten(place: str) -> None:
    for name in os.listdir(place):
        if not name.startswith(_WORK):
            continue
        directory = os.path.join(place, name)
        try:
            if time.time() - os.stat(directory).st_mtime < _FORGOTTEN:
                continue
            descriptor = os.open(lock_file(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # done, and removed by its owner
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            log.debug("%s is in use", directory)
        finally:
            os.close(descriptor)
