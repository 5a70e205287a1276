"""The target's end of a stream: writes what arrives into the staging directory.

A whole object is hashed while it is written and takes its own name when its SHA-256 is right. Of an object that
arrives in ranges, over several streams or in several attempts, `range_assembly.py` hashes the bytes as they join up.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from typing import Any, Callable, Dict, List, Optional

from midstream.remote.copy import receiver
from midstream.remote.copy.allowlist import CHECKPOINTS
from midstream.remote.copy.frames import Bytes, Problem
from midstream.remote.copy.object_files import LastFolder
from midstream.remote.copy.staging import CHUNK, Stage, problem

MANIFEST = "manifest.json"
SETTLING = 4  # threads that fsync finished objects while the next ones arrive
SYNCED = 1 << 20  # objects from this size on are on the disk before they are named; the others before the manifest is


class _Arriving(receiver.Arriving):
    """Its bytes go into a file of the staging directory."""

    def __init__(self, stage: Stage, item: Dict[str, Any]):
        super().__init__(item)
        self.part = stage.part(item)
        # Whole or not: what a cut leaves behind is looked at again chunk by chunk.
        self.file = stage.open_part(self.part, fresh=self.whole)

    def write(self, data: memoryview) -> None:
        if self.whole:
            self.digest.update(data)
        at = self.item["offset"] + self.received
        self.received += len(data)
        while data:
            count = os.pwrite(self.file, data, at)
            data, at = data[count:], at + count

    def give_up(self) -> None:
        """Keep what a later copy may go on from: whole chunks."""
        self.close()
        if self.whole and self.received < CHUNK:
            os.unlink(self.part)

    def close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class _Settling:
    """Threads that wait for the disk while the next objects arrive. Small objects need none, and no import of them."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._running: List[Any] = []

    def submit(self, work: Callable[..., None], *arguments: Any) -> None:
        """OSError of work that was submitted before."""
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

        if self._pool is None:
            self._pool = ThreadPoolExecutor(SETTLING)
        while len(self._running) > 2 * SETTLING:
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


class _Receiver(receiver.Receiver):
    def __init__(self, stage: Stage, stream: Bytes, kind: str, key: str):
        super().__init__(stream, kind, key)
        self.stage = stage
        self.settling = _Settling()
        self.folder = LastFolder(stage.directory, create=True)

    def begin(self, item: Dict[str, Any]) -> _Arriving:
        if self.kind == CHECKPOINTS:
            whole = posixpath.join(self.stage.directory, item["path"].split("/")[0], MANIFEST)
            if os.path.lexists(whole):  # nothing of a complete checkpoint is replaced
                raise Problem("system", path=item["path"], message="{} is there already".format(whole))
        return _Arriving(self.stage, item)

    def most(self, arriving: _Arriving) -> int:
        return int(arriving.item["length"]) - arriving.received

    def take(self, arriving: _Arriving, data: memoryview) -> None:
        arriving.write(data)
        self.telling.landed(len(data))

    def arrived(self, arriving: _Arriving) -> None:
        item = arriving.item
        if not arriving.whole:
            self.telling.landed(ranges=[[item["path"], item["offset"], item["length"]]])
            self.settling.submit(self._sync, arriving)
            return
        try:
            arriving.check()
        except Problem:
            arriving.close()
            os.unlink(arriving.part)
            raise
        if item["size"] < SYNCED:
            self._settle(arriving, folder=self.folder)
        else:
            self.settling.submit(self._settle, arriving, True)

    def finish(self) -> None:
        self.settling.finish()

    def close(self) -> None:
        self.settling.close()
        self.folder.close()
        if self.arriving is not None:
            self.arriving.give_up()

    def _sync(self, arriving: _Arriving) -> None:
        """Begin writing a range to the disk while others arrive."""
        with contextlib.suppress(OSError):  # the staging program syncs again, and reports
            os.fdatasync(arriving.file)
        arriving.close()

    def _settle(self, arriving: _Arriving, sync: bool = False, folder: Optional[LastFolder] = None) -> None:
        if sync:
            os.fsync(arriving.file)
        arriving.close()
        self.stage.name(arriving.part, arriving.item["path"], folder)
        self.telling.landed(objects=[arriving.item["path"]])


def receive(directory: str, generation: str, kind: str, key: str, peer: Optional[Dict[str, Any]] = None) -> int:
    """Read frames from stdin, or through TLS from ``peer``, into the staging directory ``generation`` of ``directory``.
    Only items that were requested with ``key`` (`requested_items.py`), and that a copy of this ``kind`` may contain
    (`allowlist.py`), are accepted. Lines: ``landed`` (``bytes`` since the last such line; ``objects``, verified and
    named; ``ranges``, written), and at the end ``done`` or ``problem`` (kinds truncated, source, hash, full, protocol,
    unrequested, system)."""

    def keep(stream: Bytes) -> None:
        stage = Stage(directory, generation)
        try:
            _Receiver(stage, stream, kind, key).run()
        finally:
            stage.leave()

    try:
        return receiver.receive(peer, keep)
    except OSError as error:
        problem(error, directory)
        return 1
