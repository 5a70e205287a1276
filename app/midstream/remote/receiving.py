"""The target's end of a stream: writes what arrives into the staging directory.

A whole object is hashed while it is written and takes its own name when its SHA-256 is right. Of an object that
arrives in ranges, over several streams or in several attempts, `assembly.py` hashes the bytes as they join up.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import Any, Callable, Dict, List, Optional

from midstream.remote import peer as tls
from midstream.remote.files import emit, inside
from midstream.remote.frames import DATA, FAILED, FINISH, HEADER, IDLE, ITEM, Bytes, Problem, from_stdin, widen
from midstream.remote.lines import Lines
from midstream.remote.staging import CHUNK, Stage, problem
from midstream.remote.telling import Telling

SETTLING = 4  # threads that fsync finished objects while the next ones arrive
SYNCED = 1 << 20  # objects from this size on are on the disk before they are named; the others before the manifest is


class _Arriving:
    """One item on its way in."""

    def __init__(self, stage: Stage, item: Dict[str, Any]):
        self.item = item
        self.whole = item["length"] == item["size"]
        self.place = inside(stage.directory, item["path"])
        self.part = stage.part(item)
        self.digest = hashlib.sha256() if self.whole else None
        self.received = 0
        # Whole or not: what a cut leaves behind is looked at again chunk by chunk.
        self.file = os.open(self.part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, data: memoryview) -> None:
        if self.digest is not None:
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


class _Receiver:
    def __init__(self, stage: Stage, stream: Bytes):
        self.stage = stage
        self.stream = stream
        self.arriving: Optional[_Arriving] = None
        self.settling = _Settling()
        self.telling = Telling()

    def run(self) -> None:
        try:
            while True:
                kind, length = HEADER.unpack(self.stream.exactly(HEADER.size))
                if kind == DATA:
                    self._data(length)
                elif kind == ITEM:
                    self._item(json.loads(bytes(self.stream.exactly(length))))
                elif kind == FINISH:
                    break
                elif kind == FAILED:
                    words = bytes(self.stream.exactly(length)).decode()
                    raise Problem("source", path=self._item_path(), message=words)
                elif kind != IDLE:
                    raise Problem("protocol", message="a frame of kind {}".format(kind))
            if self.arriving is not None:
                raise Problem("truncated")
            self.settling.finish()
        finally:
            self.settling.close()
            if self.arriving is not None:
                self.arriving.give_up()
            self.telling.close()

    def _item_path(self) -> str:
        return self.arriving.item["path"] if self.arriving is not None else ""

    def _item(self, item: Dict[str, Any]) -> None:
        if self.arriving is not None:
            raise Problem("protocol", message="{} begins inside another".format(item["path"]))
        self.arriving = _Arriving(self.stage, item)
        if not item["length"]:
            self._arrived()

    def _data(self, length: int) -> None:
        arriving = self.arriving
        if arriving is None or arriving.received + length > arriving.item["length"]:
            raise Problem("protocol", message="more bytes than announced for {}".format(self._item_path()))
        while length:
            data = self.stream.some(length)
            arriving.write(data)
            length -= len(data)
            self.telling.landed(len(data))
        if arriving.received == arriving.item["length"]:
            self._arrived()

    def _arrived(self) -> None:
        arriving, self.arriving = self.arriving, None
        assert arriving is not None
        item = arriving.item
        if arriving.digest is None:
            self.telling.landed(ranges=[[item["path"], item["offset"], item["length"]]])
            self.settling.submit(self._sync, arriving)
            return
        found = arriving.digest.hexdigest()
        if found != item["sha256"]:
            arriving.close()
            os.unlink(arriving.part)
            raise Problem("hash", path=item["path"], message="SHA-256 is {}".format(found))
        if item["size"] < SYNCED:
            self._settle(arriving)
        else:
            self.settling.submit(self._settle, arriving, True)

    def _sync(self, arriving: _Arriving) -> None:
        """Begin writing a range to the disk while others arrive."""
        with contextlib.suppress(OSError):  # the staging program syncs again, and reports
            os.fdatasync(arriving.file)
        arriving.close()

    def _settle(self, arriving: _Arriving, sync: bool = False) -> None:
        if sync:
            os.fsync(arriving.file)
        arriving.close()
        self.stage.name(arriving.part, arriving.place)
        self.telling.landed(objects=[arriving.item["path"]])


def receive(directory: str, generation: str, peer: Optional[Dict[str, Any]] = None) -> int:
    """Read frames from stdin, or through TLS from ``peer``, into the staging directory ``generation`` of ``directory``.
    Lines: ``landed`` (``bytes`` since the last such line; ``objects``, verified and named; ``ranges``, written), and at
    the end ``done`` or ``problem`` (kinds truncated, source, hash, full, protocol, system)."""
    if peer is None:
        widen(0)
        read_into = from_stdin
    else:
        Lines()  # the operator's end is ours
        try:
            read_into = tls.reader(tls.meet(peer))
        except OSError as error:
            emit("problem", kind="truncated", message="no connection: {}".format(error))
            return 1
    stage = Stage(directory, generation)
    try:
        _Receiver(stage, Bytes(read_into)).run()
    except Problem as found:
        emit("problem", **found.fields)
        return 1
    except OSError as error:
        problem(error, directory)
        return 1
    finally:
        stage.leave()
    emit("done")
    return 0
