"""Divide a checkpoint of DeepSpeed over another number of processes.

Only shapes and the order of parameters count, so any model will do. The new checkpoint is read again and its numbers
compared with those of the old one. Standard library only; Python 3.8.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import fcntl
import io
import os
import posixpath
import shutil
import threading
from typing import Callable, Dict, Generator, List, NamedTuple, Optional

from midstream_core import records
from midstream_core.format_error import FormatError
from midstream_core.torch_writer import write_archive
from midstream_host.driver.reshard.checkpoint import StoredCheckpoint
from midstream_host.driver.reshard.errors import ReshardError
from midstream_host.driver.reshard.new_files import NewFile, new_files
from midstream_host.driver.reshard.segments import BLOCK, Archive

LATEST = "latest"
MAX_RANKS = 1 << 14
_STATE = "reshard.json"  # in the directory of a conversion: what it converts
_WRITTEN = ".partial"
_THREADS = min(8, 4 * (os.cpu_count() or 1))  # most wait for the disk
_FLUSHED = 32 << 20  # bytes after which the disk begins to write them, while more is read
_WRITE = 2  # SYNC_FILE_RANGE_WRITE
_SYNC = getattr(ctypes.CDLL(None), "sync_file_range", None)
Progress = Callable[[int, int], None]  # bytes that are written, of all


class Resharded(NamedTuple):
    """Result of a division.

    ``digests``: SHA-256 of each kind of number, equal before and after.
    """

    step: Optional[int]
    ranks_before: int
    ranks: int
    files: int
    size: int
    digests: Dict[str, str]
    continued: int  # files that an ended conversion had written


def tag_of(directory: str) -> str:
    """Return the directory that ``latest`` names, or ``directory`` itself.

    Raises ReshardError.
    """
    path = posixpath.join(directory, LATEST)
    try:
        tag = records.read_bytes(path, 4096).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        if not os.path.isdir(directory):
            raise ReshardError("{}: there is no such directory".format(directory)) from None
        return directory
    except (OSError, records.RecordError) as error:
        raise ReshardError(str(error)) from None
    if not tag or posixpath.basename(tag) != tag or not os.path.isdir(posixpath.join(directory, tag)):
        raise ReshardError("{} names {}, which is not there".format(path, ascii(tag)[:80]))
    return posixpath.join(directory, tag)


def work_of(output: str) -> str:
    """Return the directory in which files are written until all are there."""
    return posixpath.join(posixpath.dirname(output), ".{}.reshard".format(posixpath.basename(output)))


def reshard(
    source: str,
    output: str,
    ranks: int,
    progress: Optional[Progress] = None,
    finished: Optional[Callable[[str], None]] = None,
) -> Resharded:
    """Write the checkpoint ``source`` for ``ranks`` processes to ``output``.

    Args:
        source: The checkpoint's own directory (``.../global_step10``).
        output: Its new directory, which does not exist; files are written beside it and renamed at the end.
        ranks: Data-parallel processes that will load it.
        progress: Called from several threads, one at a time.
        finished: Called with ``output`` when everything is written and compared, before it gets its name.

    Raises:
        ReshardError: A file is missing, partial, damaged or foreign, ``output`` is there, or the disk is full; nothing
            was left.
    """
    if not 1 <= ranks <= MAX_RANKS:
        raise ReshardError("{} processes: expected 1 to {}".format(ranks, MAX_RANKS))
    if os.path.lexists(output):
        raise ReshardError("{} is there already".format(output))
    work = work_of(output)
    with _locked(work):
        try:
            result = _convert(source, work, ranks, progress or (lambda _done, _total: None))
            os.unlink(posixpath.join(work, _STATE))
            records.sync_directory(work)
            if finished is not None:
                finished(output)
            os.rename(work, output)
            records.sync_directory(posixpath.dirname(output))
        except (FormatError, OSError, records.RecordError) as error:
            shutil.rmtree(work, ignore_errors=True)
            raise ReshardError("{}: {}".format(source, error)) from None
    return result


def _convert(source: str, work: str, ranks: int, progress: Progress) -> Resharded:
    stored = StoredCheckpoint(source)
    files = new_files(stored, ranks)
    total = sum(file.size for file in files) + sum(stored.sizes[path] for path in stored.others)
    finished = _continued(stored, work, ranks, files)
    free = shutil.disk_usage(work).free + sum(os.path.getsize(posixpath.join(work, name)) for name in finished)
    if free < total:
        raise FormatError("{} bytes are free where it would be written, and it has {}".format(free, total))
    count = _Count(total, progress)
    with concurrent.futures.ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for task in [
            *(pool.submit(_write, work, file, finished, count) for file in files),
            *(pool.submit(_copy, source, work, path, count) for path in stored.others),
        ]:
            task.result()
        for task in [pool.submit(archive.check) for archive in stored.archives()]:
            task.result()
    records.sync_directory(work)
    digests = _compare(stored, StoredCheckpoint(work), ranks)
    if stored.has_changed():
        raise FormatError("it was written again while it was read")
    return Resharded(stored.step, stored.ranks, ranks, len(files) + len(stored.others), total, digests, len(finished))


def _compare(stored: StoredCheckpoint, written: StoredCheckpoint, ranks: int) -> Dict[str, str]:
    """Return the digests of both.

    Raises FormatError unless what was written has the numbers of the source.
    """
    if written.ranks != ranks:
        raise FormatError("what was written is for {} processes: report this as a fault".format(written.ranks))
    digests = stored.digests(written)
    with concurrent.futures.ThreadPoolExecutor(max_workers=_THREADS) as pool:
        for task in [pool.submit(archive.check_rest) for archive in written.archives()]:
            task.result()
    return digests


@contextlib.contextmanager
def _locked(work: str) -> Generator[None, None, None]:
    """Hold the directory of a conversion.

    Raises ReshardError: another process converts to the same output.
    """
    try:
        os.makedirs(work, exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise ReshardError("{}: cannot be written: {}".format(work, error.strerror or error)) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ReshardError("{}: another process writes there".format(work)) from None
    finally:
        os.close(descriptor)


def _continued(stored: StoredCheckpoint, work: str, ranks: int, files: List[NewFile]) -> List[str]:
    """Return the files that an ended conversion had written; remove all else."""
    path = posixpath.join(work, _STATE)
    state = {"files": [list(mark) for mark in stored.signature], "ranks": ranks}
    try:
        before = records.read_json(path) if os.path.exists(path) else None
    except records.RecordError:  # damaged: it begins again
        before = None
    expected = {file.name for file in files} | set(stored.others)
    finished: List[str] = []
    for folder, _, names in os.walk(work):
        for name in names:
            relative = posixpath.relpath(posixpath.join(folder, name), work)
            if before == state and relative in expected:
                finished.append(relative)
            elif relative != _STATE:
                os.unlink(posixpath.join(folder, name))
    records.write_json(path, state)
    return finished


class _Count:
    """Counts what was written."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._done, self._progress = total, 0, progress
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Add bytes."""
        with self._lock:
            self._done += size
            self._progress(self._done, self._total)


class _FlushedFile(io.FileIO):
    """File whose bytes go to the disk while it is written.

    Little is left to wait for at its end.
    """

    _flushed = 0

    def write(self, data: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Write bytes; where the C library can, begin to write the last ones to the disk."""
        size = super().write(data)
        end = self.tell()  # codespell:ignore tell
        if end - self._flushed >= _FLUSHED and _SYNC is not None:
            _SYNC(self.fileno(), ctypes.c_int64(self._flushed), ctypes.c_int64(end - self._flushed), _WRITE)
            self._flushed = end
        return size


def _write(work: str, file: NewFile, finished: List[str], count: _Count) -> None:
    path = posixpath.join(work, file.name)
    if file.name not in finished:
        with io.BufferedRandom(_FlushedFile(path + _WRITTEN, "w+")) as output:
            write_archive(output, file.folder, file.members)
            output.flush()
            os.fsync(output.fileno())
        os.rename(path + _WRITTEN, path)
    count.add(file.size)


def _copy(source: str, work: str, path: str, count: _Count) -> None:
    """Copy a file that every number of processes has; check an archive of torch."""
    target = posixpath.join(work, path)
    os.makedirs(posixpath.dirname(target), exist_ok=True)
    with records.open_regular(posixpath.join(source, path)) as original, open(target + _WRITTEN, "wb") as output:
        shutil.copyfileobj(original, output, BLOCK)
        output.flush()
        os.fsync(output.fileno())
        size = output.tell()  # codespell:ignore tell
    if path.endswith(".pt"):
        archive = Archive(target + _WRITTEN)
        for member in archive.names():
            archive.check_member(member)
    os.rename(target + _WRITTEN, target)
    count.add(size)
