"""Copy from a bucket into the staging directory of a disk of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from concurrent.futures import Future, wait
from functools import partial
from typing import Callable, Deque, List, Optional, Tuple

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import BLOCK, BucketClient
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.bucket import disk_copy
from midstream_host.bucket.writes import ONE_REQUEST
from midstream_host.copy.disk_receiver import SYNC_SIZE, refuse_complete
from midstream_host.copy.frames import ProblemError
from midstream_host.copy.staging import CHUNK, Stage, problem
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program

PIECE = 2 * CHUNK  # bytes of one request for a large object
AHEAD = 8  # pieces of a large object that are read while earlier ones are hashed
SYNC_BYTES = 64 << 20  # of a large object, after which they are written to the disk while others arrive


class _Download(disk_copy.DiskCopy):
    def __init__(self, stage: Stage, bucket: BucketClient, kind: str, key: str) -> None:
        super().__init__(kind, key)
        self.stage, self.bucket = stage, bucket

    def take(self, item: CopyItem) -> None:
        refuse_complete(self.stage, item, self.kind)
        complete = item["length"] == item["size"]
        if item["length"] > ONE_REQUEST:
            self._pieces(item, complete)
            return
        self.pace.wait_after(item["length"])
        part = self.stage.part(item)
        memory = self.work.memory.take(min(BLOCK, item["length"]))
        self.work.submit(memory, self._complete if complete else self._range, item, part)

    # ------------------------------------------------------------------------------------------------- one request

    def _complete(self, buffer: bytearray, item: CopyItem, part: str) -> Callable[[], None]:
        """Read an object into a file; return what syncs and names it, without the memory."""
        digest = hashlib.sha256()
        file = self.stage.open_part(part, fresh=True)
        try:
            self._read(buffer, item, 0, item["length"], file, digest.update)
            _check(digest.hexdigest(), item)
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        return partial(self._place, file, item, part)

    def _place(self, file: int, item: CopyItem, part: str) -> None:
        try:
            if item["size"] >= SYNC_SIZE:
                os.fsync(file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        finally:
            os.close(file)
        self.stage.name(part, item["path"])
        self.reports.landed(item["length"], [item["path"]])

    def _range(self, buffer: bytearray, item: CopyItem, part: str) -> None:
        file = self.stage.open_part(part, fresh=False)
        try:
            self._read(buffer, item, item["offset"], item["length"], file)
            with contextlib.suppress(OSError):  # the staging program syncs again, and reports
                os.fdatasync(file)
        finally:
            os.close(file)
        self.reports.landed(item["length"], ranges=[[item["path"], item["offset"], item["length"]]])

    def _read(
        self,
        buffer: bytearray,
        item: CopyItem,
        start: int,
        length: int,
        file: int,
        update: Optional[Callable[[memoryview], None]] = None,
    ) -> None:
        """Read a range of the object into ``file``, block by block through ``buffer``.

        Large writes are slower: the file system looks for large pages, which are seldom in use already.

        Args:
            buffer: Memory for a block, or for all of them.
            item: The item.
            start: First byte of the range in the object.
            length: Bytes of the range.
            file: The file.
            update: Called with each block, in order.

        Raises:
            ProblemError: The range cannot be read.
        """
        position = start

        def take(block: memoryview) -> None:
            nonlocal position
            if update is not None:
                update(block)
            position = _write(file, block, position)

        try:
            with memoryview(buffer) as view:
                count = self.bucket.read_blocks(item["path"], start, length, view, take)
        except FileNotFoundError:
            raise ProblemError("source", path=item["path"], message="missing") from None
        except StoreError as error:
            raise ProblemError("source", path=item["path"], message=error.message) from None
        self.reports.received(count)
        if count < length:
            message = "{} bytes, the manifest says {}".format(start + count, item["size"])
            raise ProblemError("source", path=item["path"], message=message)

    # -------------------------------------------------------------------------------------------- several requests

    def _pieces(self, item: CopyItem, complete: bool) -> None:
        """Read a large item in several pieces at a time, and hash them in order."""
        part = self.stage.part(item)
        file = self.stage.open_part(part, fresh=complete)
        digest = hashlib.sha256()
        reading: Deque[Tuple[bytearray, "Future[None]"]] = deque()
        syncs: List["Future[None]"] = []

        def hash_next() -> None:
            reading[0][1].result()
            buffer, _ = reading.popleft()
            if complete:
                digest.update(buffer)
            self.work.memory.give(buffer)

        try:
            end = item["offset"] + item["length"]
            for start in range(item["offset"], end, PIECE):
                if len(reading) == AHEAD:
                    hash_next()
                self.work.raise_error()
                self.pace.wait_after(min(PIECE, end - start))
                buffer = self.work.memory.take(min(PIECE, end - start))
                reading.append((buffer, self.work.run(self._piece, buffer, item, start, file)))
                if start and not (start - item["offset"]) % SYNC_BYTES:
                    syncs.append(self.work.run(os.fdatasync, file))
            while reading:
                hash_next()
            if complete and digest.hexdigest() != item["sha256"]:
                os.unlink(part)  # no chunk of it is known to be right
                _check(digest.hexdigest(), item)
            for sync in syncs:
                sync.result()
            os.fsync(file)
        finally:
            wait([*(piece for _, piece in reading), *syncs])
            os.close(file)
        if complete:
            self.stage.name(part, item["path"])
            self.reports.landed(objects=[item["path"]])
        else:
            self.reports.landed(ranges=[[item["path"], item["offset"], item["length"]]])

    def _piece(self, buffer: bytearray, item: CopyItem, start: int, file: int) -> None:
        self._read(buffer, item, start, len(buffer), file)
        self.reports.landed(len(buffer))


def _write(file: int, block: memoryview, start: int) -> int:
    """Write a block at ``start``; return the position after it."""
    while block:
        count = os.pwrite(file, block, start)
        block = block[count:]
        start += count
    return start


def _check(digest: str, item: CopyItem) -> None:
    if digest != item["sha256"]:
        raise ProblemError("hash", path=item["path"], message="SHA-256 is {}".format(digest))


@program
def download(directory: str, url: str, generation: str, kind: str, key: str, access: JsonObject) -> int:
    """Copy the items that lines on stdin request from a bucket to a disk.

    A program. Input lines are those of ``copy.sender.send``, events those of
    ``copy.disk_receiver.receive``.

    Args:
        directory: The target directory.
        url: ``SCHEME://bucket/prefix``.
        generation: Name of the staging directory of this copy.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with (`requested_items`), in hex.
        access: Fields of `Access`.
    """
    stage = Stage(directory, generation)
    try:
        return disk_copy.run(
            lambda: _Download(stage, open_bucket(url, Access.from_json(access)), kind, key),
            lambda error: problem(error, directory),
        )
    finally:
        stage.leave()
