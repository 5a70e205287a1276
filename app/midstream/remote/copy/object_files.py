"""The files of a tree, and words to the operator: what the programs of a copy share. It imports little, because every
stream of a copy begins with an interpreter that reads it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import stat
import sys
import threading
from typing import Any, Optional, Tuple

INCOMING = ".incoming"  # what is on its way; see staging.py
BLOCK = 1 << 20  # bytes read at once
HASHERS = 4


def emit(event: str, **fields: Any) -> None:
    """One line to the operator. Several threads report."""
    line = json.dumps(dict(fields, event=event)).encode() + b"\n"
    with _emitting:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


_emitting = threading.Lock()


def end_with_operator() -> None:
    """End this program when its stdin closes: the operator has gone, or has lost interest. For programs that read
    nothing more. The descriptor is read, because a thread in ``sys.stdin`` would hold up the interpreter's end."""

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def file_sha256(path: str, offset: int = 0, size: Optional[int] = None) -> str:
    """SHA-256 of the file from ``offset``, of ``size`` bytes or to its end. hashlib releases the GIL: threads help."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return descriptor_sha256(descriptor, offset, size)
    finally:
        os.close(descriptor)


def descriptor_sha256(descriptor: int, offset: int = 0, size: Optional[int] = None) -> str:
    """`file_sha256` of a file that is open."""
    digest = hashlib.sha256()
    view = memoryview(bytearray(BLOCK))
    left = size
    while left is None or left > 0:
        count = os.preadv(descriptor, [view if left is None else view[: min(left, BLOCK)]], offset)
        if not count:
            break
        digest.update(view[:count])
        offset += count
        left = None if left is None else left - count
    return digest.hexdigest()


def inside(directory: str, path: str) -> str:
    """The place of an object. ValueError where its path would leave the directory, or is not spelled in the one way."""
    first = path.split("/")[0]
    if path != posixpath.normpath(path) or first in ("", "..", ".", INCOMING) or "\0" in path:
        raise ValueError("object path {!r} leaves the directory".format(path))
    return posixpath.join(directory, path)


class NotPlain(OSError):
    """A symbolic link, or another thing that is no regular file, where a copy needs a file or a directory."""

    def __init__(self, path: str):
        super().__init__(errno.ELOOP, "is a symbolic link or no regular file: copies follow none", path)

    def __str__(self) -> str:
        return "{} {}".format(self.filename, self.strerror)


def open_parent(directory: str, path: str, create: bool = False) -> Tuple[int, str]:
    """A descriptor of the directory that ``path`` lies in, below ``directory``, and the last part of ``path``.

    ``directory`` itself may be reached through symbolic links, for the person who set the host up chose it. Below it
    none is followed: a link that an earlier copy or somebody else left there is NotPlain."""
    *folders, name = path.split("/")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            try:
                below = _open_folder(folder, descriptor, create)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise NotPlain(posixpath.join(directory, path)) from None
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def _open_folder(name: str, parent: int, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # somebody else was quicker
        os.mkdir(name, dir_fd=parent)
    return os.open(name, flags, dir_fd=parent)


class LastFolder:
    """The folder of the last object, kept open: objects of one array follow one another. For one thread."""

    def __init__(self, directory: str, create: bool = False):
        self._directory, self._create = directory, create
        self._folder: Optional[str] = None
        self._descriptor = -1

    def parent(self, path: str) -> Tuple[int, str]:
        """A descriptor of an object's folder, good until the next call, and the object's name in it. Errors as of
        `open_parent`; ValueError where the path leaves the directory."""
        inside(self._directory, path)
        folder, _, name = path.rpartition("/")
        if folder != self._folder:
            self.close()
            self._descriptor, _ = open_parent(self._directory, path, self._create)
            self._folder = folder
        return self._descriptor, name

    def close(self) -> None:
        """Idempotent."""
        if self._folder is not None:
            os.close(self._descriptor)
            self._folder = None


def open_object(directory: str, path: str) -> int:
    """A descriptor of the regular file ``path`` below ``directory``, for reading. NotPlain where it is none, or where
    a symbolic link leads there; ValueError where the path leaves the directory. Hard links are as good as files: trees
    of one host share objects by them (`local_reuse.py`)."""
    inside(directory, path)
    parent, name = open_parent(directory, path)
    try:
        return open_plain(name, posixpath.join(directory, path), dir_fd=parent)
    finally:
        os.close(parent)


def open_plain(name: str, shown: str = "", flags: int = os.O_RDONLY, dir_fd: Optional[int] = None) -> int:
    """A descriptor of a regular file whose last component is no symbolic link. NotPlain, which names ``shown``."""
    try:
        # A pipe would make the call wait for ever.
        descriptor = os.open(
            name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644, dir_fd=dir_fd
        )
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise NotPlain(shown or name) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlain(shown or name)
    return descriptor


def object_sha256(directory: str, path: str, offset: int = 0, size: Optional[int] = None) -> str:
    """`file_sha256` of an object (`open_object`)."""
    descriptor = open_object(directory, path)
    try:
        return descriptor_sha256(descriptor, offset, size)
    finally:
        os.close(descriptor)


def size_of(directory: str, path: str) -> int:
    """Bytes of an object. NotPlain where its last component is no regular file; FileNotFoundError."""
    place = inside(directory, path)
    found = os.lstat(place)
    if not stat.S_ISREG(found.st_mode):
        raise NotPlain(place)
    return found.st_size
