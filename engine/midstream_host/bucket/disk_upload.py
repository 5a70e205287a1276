"""Copy from a disk of this machine into a bucket."""

from __future__ import annotations

import hashlib
import os

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import CHUNK, BucketClient
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.bucket import disk_copy
from midstream_host.bucket.access_problem import report_problem
from midstream_host.bucket.writes import ObjectParts, Writes
from midstream_host.copy.frames import ProblemError
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program
from midstream_host.object_files import LastFolder, emit, open_plain

LARGE_PART = 4 * CHUNK  # bytes


class _Upload(disk_copy.DiskCopy):
    def __init__(self, directory: str, bucket: BucketClient, kind: str, key: str) -> None:
        super().__init__(kind, key)
        self.folder = LastFolder(directory)
        self.writes = Writes(bucket, self.reports)

    def take(self, item: CopyItem) -> None:
        file = self._opened(item)
        if ObjectParts.are_of(item):
            try:
                self._parts(file, item)
            finally:
                os.close(file)
            return
        self.pace.wait_after(item["length"])
        try:
            buffer = self.work.memory.take(item["length"])
        except BaseException:
            os.close(file)
            raise
        self.work.submit(buffer, self._item, file, item)

    def _opened(self, item: CopyItem) -> int:
        """Open the file of an item, which has its bytes. Raises ProblemError."""
        try:
            parent, name = self.folder.parent(item["path"])
            file = open_plain(name, item["path"], dir_fd=parent)
        except FileNotFoundError:
            raise _unreadable(item, "missing") from None
        except OSError as error:
            raise _unreadable(item, "cannot be read: {}".format(error.strerror)) from None
        if (size := os.fstat(file).st_size) < item["offset"] + item["length"]:
            os.close(file)
            raise _unreadable(item, _short(size, item))
        return file

    def _item(self, buffer: bytearray, file: int, item: CopyItem) -> None:
        """Write an item in one request."""
        try:
            _read(file, item, item["offset"], buffer)
        finally:
            os.close(file)
        self.reports.received(len(buffer))
        digest = hashlib.sha256(buffer).hexdigest()
        if item["length"] == item["size"]:
            _check(digest, item)
        self.writes.item(buffer, item, digest)

    def _parts(self, file: int, item: CopyItem) -> None:
        """Write a large object in parts, the last after its hash is verified."""
        parts, digest, start = ObjectParts(item), hashlib.sha256(), 0
        length = part_length(item["size"])
        while start < item["size"]:
            self.work.raise_error()
            buffer = self.work.memory.take(min(length, item["size"] - start))
            last = start + len(buffer) == item["size"]
            try:
                _read(file, item, start, buffer)
                digest.update(buffer)
                if last:
                    _check(digest.hexdigest(), item)
            except BaseException:
                self.work.memory.give(buffer)
                raise
            self.reports.received(len(buffer))
            self.pace.wait_after(len(buffer))
            self.writes.begin_part(parts, last=last)
            start += len(buffer)
            self.work.submit(buffer, self.writes.part, parts, start - len(buffer))


def part_length(size: int) -> int:
    """Return the bytes of each part of a large object.

    Many parts cost more in requests than their bytes do.
    """
    return LARGE_PART if size >= 8 * LARGE_PART else CHUNK


def _read(file: int, item: CopyItem, start: int, buffer: bytearray) -> None:
    """Fill ``buffer`` from a file. Raises ProblemError."""
    filled = 0
    with memoryview(buffer) as view:
        while filled < len(view):
            try:
                count = os.preadv(file, [view[filled:]], start + filled)
            except OSError as error:
                raise _unreadable(item, "cannot be read: {}".format(error.strerror)) from None
            if not count:
                raise _unreadable(item, _short(start + filled, item))
            filled += count


def _check(digest: str, item: CopyItem) -> None:
    if digest != item["sha256"]:
        raise ProblemError("hash", path=item["path"], message="SHA-256 is {}".format(digest))


def _unreadable(item: CopyItem, what: str) -> ProblemError:
    return ProblemError("source", path=item["path"], message=what)


def _short(size: int, item: CopyItem) -> str:
    return "{} bytes, the manifest says {}".format(size, item["size"])


@program
def upload(directory: str, url: str, kind: str, key: str, access: JsonObject) -> int:
    """Copy the items that lines on stdin request into a bucket.

    A program. Input lines are those of ``copy.sender.send``, events those of
    ``copy.disk_receiver.receive``.

    Args:
        directory: The source directory.
        url: ``SCHEME://bucket/prefix``.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with (`requested_items`), in hex.
        access: Fields of `Access`.
    """
    return disk_copy.run(
        lambda: _Upload(directory, open_bucket(url, Access.from_json(access)), kind, key),
        lambda error: report_problem(error, emit),
    )
