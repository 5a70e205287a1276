"""Sender of a stream from a bucket: several reads ahead, frames written in order."""

from __future__ import annotations

import json
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Deque, Iterator, Optional, Sequence, Tuple

from midstream_core.json_types import JsonObject
from midstream_core.object_store.access import Access
from midstream_core.object_store.bucket_client import AT_ONCE, CHUNK, BucketClient
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.copy.frames import DATA, ITEM
from midstream_host.copy.sender import Sender, Take, serve
from midstream_host.copy_items import CopyItem
from midstream_host.declarations import program
from midstream_host.object_files import inside


class _Ahead:
    """Read-ahead of pieces of items, in order; limits how many are in memory."""

    def __init__(self, bucket: BucketClient) -> None:
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._requested: Deque[Tuple[CopyItem, int, int]] = deque()
        self._reading: Deque[Tuple[CopyItem, int, "Future[bytes]"]] = deque()

    def request(self, item: CopyItem) -> None:
        inside("", item["path"])
        for start in range(0, item["length"] or 1, CHUNK):
            self._requested.append((item, start, min(CHUNK, item["length"] - start)))

    def __iter__(self) -> Iterator[Tuple[CopyItem, int, "Future[bytes]"]]:
        """Yield (item, offset in it, its bytes) of all requested pieces."""
        while self._requested or self._reading:
            while self._requested and len(self._reading) < AT_ONCE:
                item, start, length = self._requested.popleft()
                begin = item["offset"] + item.get("begin", 0) + start
                self._reading.append((item, start, self._pool.submit(self._bucket.read, item["path"], begin, length)))
            yield self._reading.popleft()


@program
def send(directory: str, access: JsonObject, peer: Optional[JsonObject] = None) -> int:
    """Send items of a bucket; ``directory`` is ``SCHEME://bucket/prefix``.

    A program. Input lines are those of ``copy.sender.send``.
    """

    def begin(sender: Sender) -> Take:
        ahead = _Ahead(open_bucket(directory, Access.from_json(access)))

        def take(items: Sequence[CopyItem]) -> bool:
            for item in items:
                ahead.request(item)
            return _sent(sender, ahead)

        return take

    try:
        return serve(directory, peer, begin)
    except StoreError as error:
        sys.stderr.write(str(error) + "\n")  # stdout is for frames
        return 1


def _sent(sender: Sender, ahead: _Ahead) -> bool:
    """Send everything requested. False where it cannot be read, after a FAILED frame."""
    for item, start, reading in ahead:
        if not start:
            sender.frame(ITEM, json.dumps(item).encode())
        try:
            data = reading.result()
        except FileNotFoundError:
            return sender.failed("missing")
        except StoreError as error:
            return sender.failed(error.message)
        if len(data) < min(CHUNK, item["length"] - start):
            return sender.failed("{} bytes, the manifest says {}".format(start + len(data), item["size"]))
        view = memoryview(data)
        while view:
            size = min(sender.pace.piece, len(view))
            sender.frame(DATA, bytes(view[:size]))
            sender.pace.wait_after(size)
            view = view[size:]
    return True
