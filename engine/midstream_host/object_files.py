"""Files of a tree, and reports to the app: shared by the programs of a copy.

This module imports little, because every stream begins with an interpreter that reads it.
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
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

from midstream_core.json_types import JsonValue

INCOMING = ".incoming"  # staging directory; see midstream_host/copy/staging.py
BLOCK = 1 << 20  # bytes read at once
HASHERS = 4


def emit(event: str, **fields: object) -> None:
    """Print one line for the app. Any thread may."""
    emit_line(line_of(event, fields))


def line_of(event: str, fields: Dict[str, Any]) -> bytes:
    """Return an event as a line for the app."""
    return json.dumps(dict(fields, event=event), default=_plain).encode() + b"\n"


def emit_line(line: bytes) -> None:
    """Print a line that `line_of` made. Any thread may."""
    with _emitting:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def _plain(value: Any) -> JsonValue:
    """The JSON form of a record or a dataclass."""
    return value.to_json() if hasattr(value, "to_json") else cast("Dict[str, JsonValue]", vars(value))


_emitting = threading.Lock()


def end_with_operator() -> None:
    """End this program when its stdin closes: the app has exited or cancelled it.

    For programs that read no further input. The descriptor is read: a thread in ``sys.stdin`` would hold up the
    interpreter's end.
    """

    def wait_for_end() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait_for_end, daemon=True).start()


def descriptor_sha256(descriptor: int, offset: int = 0, size: Optional[int] = None) -> str:
    """Return the SHA-256 of ``size`` bytes of an open file from ``offset``.

    Without ``size`` all bytes to the file's end are hashed. Releases the GIL.
    """
    digest = hashlib.sha256()
    view = memoryview(bytearray(BLOCK))
    rest = size
    while rest is None or rest > 0:
        count = os.preadv(descriptor, [view if rest is None else view[: min(rest, BLOCK)]], offset)
        if not count:
            break
        digest.update(view[:count])
        offset += count
        rest = None if rest is None else rest - count
    return digest.hexdigest()


def inside(directory: str, path: str) -> str:
    """Return the path of an object.

    Raises ValueError where it leaves the directory or is not normalized.
    """
    first = path.split("/")[0]
    if path != posixpath.normpath(path) or first in ("", "..", ".", INCOMING) or "\0" in path:
        raise ValueError("object path {!r} leaves the directory".format(path))
    return posixpath.join(directory, path)


class NotPlainError(OSError):
    """A copy needs a file or a directory and found a symbolic link or something else."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "is a symbolic link or no regular file: copies follow none", path)

    def __str__(self) -> str:
        return "{} {}".format(self.filename, self.strerror)


def open_parent(directory: str, path: str, create: bool = False) -> Tuple[int, str]:
    """Open the parent directory of ``path`` below ``directory``.

    Return it and the last part of ``path``.

    ``directory`` itself may be reached through symbolic links: the user configured it. Below it none is followed.

    Raises:
        NotPlainError: A component below ``directory`` is a symbolic link.
    """
    *folders, name = path.split("/")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            try:
                below, _ = _open_or_create(folder, descriptor, create)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise NotPlainError(posixpath.join(directory, path)) from None
            os.close(descriptor)
            descriptor = below
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def _open_or_create(name: str, parent: int, create: bool, absent: bool = False) -> Tuple[int, bool]:
    """Open a folder.

    Return its descriptor, and whether it was created. ``absent``: it is probably not there.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    if not (create and absent):
        try:
            return os.open(name, flags, dir_fd=parent), False
        except FileNotFoundError:
            if not create:
                raise
    created = False
    with contextlib.suppress(FileExistsError):  # another process created it
        os.mkdir(name, dir_fd=parent)
        created = True
    return os.open(name, flags, dir_fd=parent), created


class LastFolder:
    """Cache of the folder opened last and of those around it, for one thread.

    Objects that follow one another are near one another.
    """

    def __init__(
        self, directory: str, create: bool = False, leaving: Optional[Callable[[str, int], None]] = None
    ) -> None:
        """Begin without a folder.

        Args:
            directory: The directory that the paths are relative to.
            create: Whether folders that are not there are created.
            leaving: Called with each folder, also those above it, before it is closed: its path in the directory, and
                its descriptor.
        """
        self._directory, self._create, self._leaving = directory, create, leaving
        self._names: List[str] = []  # parts of the path of the folder opened last
        self._open: List[int] = []  # descriptors of the directory and of each of these parts
        self._created = False  # the folder opened last was not there: those beside it may not be there either

    def parent(self, path: str) -> Tuple[int, str]:
        """Return a descriptor of an object's folder and the object's name.

        The descriptor is valid until the next call. Raises as `open_parent`; ValueError where the path leaves the
        directory.
        """
        inside(self._directory, path)
        *folders, name = path.split("/")
        if folders != self._names or not self._open:
            self._enter(folders, path)
        return self._open[-1], name

    def _enter(self, folders: List[str], path: str) -> None:
        if not self._open:
            self._open.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        common = 0
        for folder_name, other in zip(folders, self._names):
            if folder_name != other:
                break
            common += 1
        self._leave(common + 1)
        for folder in folders[common:]:
            try:
                descriptor, self._created = _open_or_create(folder, self._open[-1], self._create, self._created)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                raise NotPlainError(posixpath.join(self._directory, path)) from None
            self._open.append(descriptor)
            self._names.append(folder)

    def close(self) -> None:
        """Close the folders. Idempotent."""
        self._leave(0)

    def _leave(self, count: int) -> None:
        """Close the folders below the first ``count``."""
        while len(self._open) > count:
            descriptor, names = self._open.pop(), self._names[:]
            del self._names[max(0, len(self._open) - 1) :]
            try:
                if self._leaving is not None:
                    self._leaving("/".join(names), descriptor)
            finally:
                os.close(descriptor)


def open_object(directory: str, path: str) -> int:
    """Open the regular file ``path`` below ``directory`` for reading.

    Raises NotPlainError where it is no regular file or a symbolic link leads to it, ValueError where the path leaves
    the directory. Hard links are accepted: trees of one host share objects by them (`local_reuse`).
    """
    inside(directory, path)
    parent, name = open_parent(directory, path)
    try:
        return open_plain(name, posixpath.join(directory, path), dir_fd=parent)
    finally:
        os.close(parent)


def open_plain(name: str, shown: str = "", flags: int = os.O_RDONLY, dir_fd: Optional[int] = None) -> int:
    """Open a regular file that is no symbolic link.

    Raises NotPlainError, which names ``shown``.
    """
    try:
        # A pipe would make the call wait for ever.
        descriptor = os.open(
            name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644, dir_fd=dir_fd
        )
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise NotPlainError(shown or name) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotPlainError(shown or name)
    return descriptor


def object_sha256(directory: str, path: str, offset: int = 0, size: Optional[int] = None) -> str:
    """`descriptor_sha256` of an object (`open_object`)."""
    descriptor = open_object(directory, path)
    try:
        return descriptor_sha256(descriptor, offset, size)
    finally:
        os.close(descriptor)


def size_of(directory: str, path: str) -> int:
    """Size of an object in bytes. Raises NotPlainError where it is no regular file."""
    full_path = inside(directory, path)
    status = os.lstat(full_path)
    if not stat.S_ISREG(status.st_mode):
        raise NotPlainError(full_path)
    return status.st_size
