"""A bucket as the source of a stream: reads objects ahead, several requests at a time, and writes frames in order."""

from __future__ import annotations

import json
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Deque, Dict, Iterator, Optional, Sequence, Tuple

from midstream.remote.copy.frames import DATA, ITEM
from midstream.remote.copy.object_files import inside
from midstream.remote.copy.sender import Sender, Take, serve
from midstream.remote.gcs import client


class _Ahead:
    """Pieces of items that are being read, in order; as many as may lie in memory at once."""

    def __init__(self, bucket: client.Bucket):
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(client.AT_ONCE)
        self._wanted: Deque[Tuple[Dict[str, Any], int, int]] = deque()
        self._reading: Deque[Tuple[Dict[str, Any], int, "Future[bytes]"]] = deque()

    def want(self, item: Dict[str, Any]) -> None:
        inside("", item["path"])
        for start in range(0, item["length"] or 1, client.CHUNK):
            self._wanted.append((item, start, min(client.CHUNK, item["length"] - start)))

    def __iter__(self) -> Iterator[Tuple[Dict[str, Any], int, "Future[bytes]"]]:
        """(item, offset in it, its bytes) of all that was wanted."""
        while self._wanted or self._reading:
            while self._wanted and len(self._reading) < client.AT_ONCE:
                item, start, length = self._wanted.popleft()
                begin = item["offset"] + item.get("from", 0) + start
                self._reading.append((item, start, self._pool.submit(self._bucket.read, item["path"], begin, length)))
            yield self._reading.popleft()


def send(directory: str, access: Dict[str, Any], peer: Optional[Dict[str, Any]] = None) -> int:
    """As ``copy.sender.send``, whose lines it understands, from a bucket: ``directory`` is ``gs://bucket/prefix``."""

    def begin(sender: Sender) -> Take:
        ahead = _Ahead(client.Bucket(directory, access))

        def take(items: Sequence[Dict[str, Any]]) -> bool:
            for item in items:
                ahead.want(item)
            return _sent(sender, ahead)

        return take

    try:
        return serve(directory, peer, begin)
    except client.GcsError as error:
        sys.stderr.write(str(error) + "\n")  # stdout carries frames
        return 1


def _sent(sender: Sender, ahead: _Ahead) -> bool:
    """Everything that is wanted; False where it cannot be read, which the stream says."""
    for item, start, reading in ahead:
        if not start:
            sender.frame(ITEM, json.dumps(item).encode())
        try:
            data = reading.result()
        except FileNotFoundError:
            return sender.failed("missing")
        except client.GcsError as error:
            return sender.failed(error.message)
        if len(data) < min(client.CHUNK, item["length"] - start):
            return sender.failed("{} bytes, the manifest says {}".format(start + len(data), item["size"]))
        view = memoryview(data)
        while view:
            size = min(sender.pace.piece, len(view))
            sender.frame(DATA, bytes(view[:size]))
            sender.pace.took(size)
            view = view[size:]
    return True
