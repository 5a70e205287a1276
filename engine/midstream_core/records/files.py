"""Atomic writes and bounded reads of the files of a run directory."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import time
from typing import Any, BinaryIO, Generator, List, Set, Union

from midstream_core.json_types import JsonValue
from midstream_core.records.errors import DamagedRecordError, RecordError

MAX_FILE = 1 << 26  # bytes of a JSON file that is read: a manifest of a hundred thousand objects has about 20 MB
TAIL = 1 << 16  # bytes of a file that are searched at a time for the end of its last complete line
PIECE = 1 << 16  # bytes that are read at a time
_unfinished: Set[str] = set()  # temporary files that this process writes now, in any thread


def canonical_json(value: object) -> bytes:
    """Encode ``value`` in its one canonical form, which digests are computed over.

    Sorted keys, no spaces, UTF-8, no NaN.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def finite_json(value: JsonValue) -> JsonValue:
    """Return a JSON value with null for numbers that are not finite.

    JSON has no form for such numbers.
    """
    if isinstance(value, dict):
        return {name: finite_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: str, value: object, *, durable: bool = True) -> None:
    """Replace ``path`` atomically.

    ``durable`` also waits until the new name is on the disk.
    """
    write_bytes(path, json.dumps(value, indent=1, allow_nan=False).encode() + b"\n", durable=durable)


def write_bytes(path: str, data: bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Replace ``path`` atomically with ``data``.

    An OSError has ``path`` as its file name.
    """
    temporary = f"{path}.tmp-{os.getpid()}-{time.monotonic_ns()}"
    _unfinished.add(temporary)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            error.filename = path  # a full disk has none, and the temporary name is of no use
        raise
    finally:
        _unfinished.discard(temporary)
    if durable:
        sync_directory(os.path.dirname(path) or ".")


def remove_unfinished_files() -> None:
    """Remove the temporary files of writes in progress, before an exit at once."""
    for temporary in list(_unfinished):
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def append_line(descriptor: int, line: bytes) -> None:
    """Append ``line`` to a file that has no other writer.

    Raises OSError where the disk is full; the file then ends where it ended before.
    """
    size = os.fstat(descriptor).st_size
    rest = memoryview(line)
    try:
        while rest:  # a disk that fills up accepts a part of the line; only the next write fails
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def open_lines(path: str) -> int:
    """Open a file to append lines to it; return the descriptor.

    A partial last line, of a writer that was killed or of a power cut, is removed: the next line would become a part
    of it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = end = os.fstat(descriptor).st_size
        while end:
            begin = max(0, end - TAIL)
            newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
            if newline >= 0:
                end = begin + newline + 1
                break
            end = begin
        if end < size:
            os.ftruncate(descriptor, end)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def sync_directory(path: str) -> None:
    """Wait until a directory's names are on disk, where the file system supports it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def open_regular(path: str) -> BinaryIO:
    """Open a regular file for reading, without blocking on a FIFO or a device.

    Raises FileNotFoundError where it is absent, DamagedRecordError where it is a directory, a FIFO or a device.
    """
    return os.fdopen(_open_regular(path), "rb")


def _open_regular(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise DamagedRecordError(f"{path}: not a regular file")


def read_bytes(path: str, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes.

    Raises FileNotFoundError where it is absent, DamagedRecordError where it is not a regular file or is larger.
    """
    descriptor = _open_regular(path)  # a file object would take twice as long
    try:
        pieces: List[bytes] = []
        remaining = limit + 1
        while remaining > 0:
            piece = os.read(descriptor, min(remaining, PIECE))
            if not piece:
                break
            pieces.append(piece)
            remaining -= len(piece)
    finally:
        os.close(descriptor)
    if remaining <= 0:
        raise DamagedRecordError(f"{path}: larger than {limit} bytes")
    return b"".join(pieces)


def parse_json(data: Union[bytes, str], where: str) -> JsonValue:
    """Decode JSON.

    Raises RecordError that names ``where`` for anything else, at any depth of nesting.
    """
    try:
        return json.loads(data)
    except ValueError as error:
        raise RecordError(f"{where}: not JSON ({error})" if data else f"{where}: it is empty") from error
    except (RecursionError, MemoryError):
        raise RecordError(f"{where}: not JSON that can be read (nested too deeply, or too large)") from None


def read_json(path: str, limit: int = MAX_FILE) -> Any:
    """Read the JSON value in ``path``.

    Raises FileNotFoundError where it is absent, DamagedRecordError where it is partial, not a regular file, or larger
    than ``limit`` bytes.
    """
    try:
        return parse_json(read_bytes(path, limit), path)
    except RecordError as error:
        raise DamagedRecordError(str(error)) from None


def read_json_or_none(path: str, limit: int = MAX_FILE) -> Any:
    """Read the JSON value in ``path``; None where the file is absent.

    Raises DamagedRecordError.
    """
    try:
        return read_json(path, limit)
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def locked(path: str) -> Generator[None, None, None]:
    """Hold an exclusive advisory lock (flock) on ``path``.

    The file is created where it is missing.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
