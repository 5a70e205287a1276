"""Receiver of a stream that writes into the staging directory of a disk.

An object that arrives in one item is hashed while it is written, and gets its name if its SHA-256 is right. An object
that arrives in ranges, over several streams or in several attempts, is hashed by `range_assembly`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from functools import partial
from typing import Any, Callable, List, Optional, Union

from midstream_core.json_types import JsonObject
from midstream_host.allowlist import CHECKPOINTS
from midstream_host.copy import receiver
from midstream_host.copy.frames import Incoming, ProblemError
from midstream_host.copy.receiver import check
from midstream_host.copy.staging import CHUNK, Stage, problem
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program
from midstream_host.object_files import LastFolder, emit

MANIFEST = "manifest.json"
SYNC_THREADS = 4  # fsync finished objects while the next ones arrive
SYNC_SIZE = 1 << 20  # bytes; larger objects are synced before they are named, smaller ones before the manifest


def refuse_complete(stage: Stage, item: CopyItem, kind: str) -> None:
    """Raise ProblemError where a copy of checkpoints would replace a complete one."""
    if kind == CHECKPOINTS:
        manifest = posixpath.join(stage.directory, item["path"].split("/")[0], MANIFEST)
        if os.path.lexists(manifest):
            raise ProblemError("system", path=item["path"], message="{} exists already".format(manifest))


class _Arriving(receiver.Arriving):
    """An item whose bytes are written to a file of the staging directory."""

    def __init__(self, stage: Stage, item: CopyItem) -> None:
        super().__init__(item)
        self._stage = stage
        self.part = ""
        self.file = -1
        self.placed = False

    def open(self) -> None:
        """Open the part. Idempotent."""
        if self.file < 0:
            self.part = self._stage.part(self.item)
            self.file = self._stage.open_part(self.part, fresh=self.complete)

    def write(self, data: memoryview) -> None:
        self.open()
        if self.complete:
            self.digest.update(data)
        at: int = self.item["offset"] + self.received
        self.received += len(data)
        while data:
            count = os.pwrite(self.file, data, at)
            data, at = data[count:], at + count

    def give_up(self) -> None:
        """Close the file; delete it if it has no complete chunk that a later copy can use."""
        self.close()
        if self.part and self.complete and self.received < CHUNK:
            os.unlink(self.part)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class _SyncPool:
    """Threads that sync large objects while the next arrive; started with the first."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._running: List[Any] = []

    def submit(self, work: Callable[..., None], *arguments: Any) -> None:
        """Run ``work`` in a thread. Raises OSError of work that was submitted before."""
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

        if self._pool is None:
            self._pool = ThreadPoolExecutor(SYNC_THREADS)
        while len(self._running) > 2 * SYNC_THREADS:
            finished, running = wait(self._running, return_when=FIRST_COMPLETED)
            self._running = list(running)
            for future in finished:
                future.result()
        self._running.append(self._pool.submit(work, *arguments))

    def finish(self) -> None:
        running, self._running = self._running, []
        for future in running:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)


class _Receiver(receiver.Receiver[_Arriving]):
    def __init__(self, stage: Stage, stream: Incoming, kind: str, key: str, report: Callable[..., None]) -> None:
        super().__init__(stream, kind, key, report)
        self.stage = stage
        self.sync_pool = _SyncPool()
        self.folder = LastFolder(stage.directory, create=True)

    def begin(self, item: CopyItem) -> _Arriving:
        refuse_complete(self.stage, item, self.kind)
        return _Arriving(self.stage, item)

    def most(self, arriving: _Arriving) -> int:
        return int(arriving.item["length"]) - arriving.received

    def take(self, arriving: _Arriving, data: memoryview) -> None:
        if len(data) == arriving.item["size"] <= receiver.SMALL:
            arriving.received = len(data)
            self._small(arriving, data)
            return
        arriving.write(data)
        self.reports.landed(len(data))

    def _small(self, arriving: _Arriving, data: Union[bytes, memoryview]) -> None:
        """Check an object of which all bytes are here, then write and name it.

        Raises ProblemError.
        """
        item = arriving.item
        check(item, hashlib.sha256(data))
        self.stage.place(item["path"], data, self.folder)
        arriving.placed = True
        self.reports.landed(len(data), [item["path"]])

    def arrived(self, arriving: _Arriving) -> None:
        item = arriving.item
        if not item["size"]:
            self._small(arriving, b"")
        if arriving.placed:
            return
        arriving.open()
        if not arriving.complete:
            self.reports.landed(ranges=[[item["path"], item["offset"], item["length"]]])
            self.sync_pool.submit(self._sync, arriving)
            return
        try:
            check(item, arriving.digest)
        except ProblemError:
            arriving.close()
            os.unlink(arriving.part)
            raise
        if item["size"] < SYNC_SIZE:
            self._name(arriving, folder=self.folder)
        else:
            self.sync_pool.submit(self._name, arriving, True)

    def finish(self) -> None:
        self.sync_pool.finish()

    def close(self) -> None:
        self.sync_pool.close()
        self.folder.close()
        if self.arriving is not None:
            self.arriving.give_up()

    def _sync(self, arriving: _Arriving) -> None:
        """Sync a range while others arrive."""
        with contextlib.suppress(OSError):  # the staging program syncs again, and reports
            os.fdatasync(arriving.file)
        arriving.close()

    def _name(self, arriving: _Arriving, sync: bool = False, folder: Optional[LastFolder] = None) -> None:
        if sync:
            os.fsync(arriving.file)
        arriving.close()
        self.stage.name(arriving.part, arriving.item["path"], folder)
        self.reports.landed(objects=[arriving.item["path"]])


@program
def receive(directory: str, generation: str, kind: str, key: str, peer: Optional[JsonObject] = None) -> int:
    """Read frames from stdin or a TLS peer into the staging directory ``generation``.

    A program. Only items that were requested with ``key`` (`requested_items`) and that a copy of this ``kind`` may
    contain (`allowlist`) are accepted.

    Events: ``landed`` (``bytes`` since the last one; ``received``, those that the stream brought, fewer where chunks
    were packed; ``objects``, verified and named; ``ranges``, written), then ``done`` or ``problem`` (kinds truncated,
    source, hash, full, protocol, unrequested, system).

    Args:
        directory: The target directory.
        generation: Name of the staging directory of this copy.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with (`requested_items`), in hex.
        peer: The TLS peer that sends the stream; None: stdin.
    """
    return 0 if receive_into(directory, generation, kind, key, partial(receiver.receive, peer), emit) else 1


def receive_into(
    directory: str,
    generation: str,
    kind: str,
    key: str,
    receive_from: Callable[[Callable[[Incoming], None]], bool],
    report: Callable[..., None],
) -> bool:
    """Receive one stream; return whether it is done. See `receive`.

    Args:
        directory: The target directory.
        generation: Name of the staging directory of this copy.
        kind: What the copy may contain (`allowlist`).
        key: Key that the items were requested with.
        receive_from: Passes the stream to a function, and returns whether it is done.
        report: Sends a report: its event, and its fields by name.
    """

    def write(stream: Incoming) -> None:
        stage = Stage(directory, generation)
        try:
            _Receiver(stage, stream, kind, key, report).run()
        finally:
            stage.leave()

    try:
        return receive_from(write)
    except OSError as error:
        problem(error, directory, report)
        return False
