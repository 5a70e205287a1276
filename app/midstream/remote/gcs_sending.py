"""A bucket as the source of a stream: reads objects ahead, several requests at a time, and writes frames in order."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

from midstream.remote import gcs
from midstream.remote import peer as tls
from midstream.remote.files import inside
from midstream.remote.frames import DATA, FINISH, IDLE, ITEM
from midstream.remote.lines import Lines
from midstream.remote.sending import TICK, Pipe, Sender, SocketOut


class _Ahead:
    """Pieces of items that are being read, in order; as many as may lie in memory at once."""

    def __init__(self, bucket: gcs.Bucket):
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(gcs.AT_ONCE)
        self._wanted: Deque[Tuple[Dict[str, Any], int, int]] = deque()
        self._reading: Deque[Tuple[Dict[str, Any], int, "Future[bytes]"]] = deque()

    def want(self, item: Dict[str, Any]) -> None:
        inside("", item["path"])
        for start in range(0, item["length"] or 1, gcs.CHUNK):
            self._wanted.append((item, start, min(gcs.CHUNK, item["length"] - start)))

    def __iter__(self) -> Iterator[Tuple[Dict[str, Any], int, "Future[bytes]"]]:
        """(item, offset in it, its bytes) of all that was wanted."""
        while self._wanted or self._reading:
            while self._wanted and len(self._reading) < gcs.AT_ONCE:
                item, start, length = self._wanted.popleft()
                begin = item["offset"] + item.get("from", 0) + start
                self._reading.append((item, start, self._pool.submit(self._bucket.read, item["path"], begin, length)))
            yield self._reading.popleft()


def send(directory: str, access: Dict[str, Any], peer: Optional[Dict[str, Any]] = None) -> int:
    """As ``sending.send``, whose lines it understands, from a bucket: ``directory`` is ``gs://bucket/prefix``."""
    lines = Lines()
    sock = tls.meet(peer) if peer is not None else None
    sender = Sender(directory, Pipe(sys.stdout.buffer.fileno()) if sock is None else SocketOut(sock))
    try:
        ahead = _Ahead(gcs.Bucket(directory, access))
        while True:
            line = lines.get(0.0)
            if line is None:
                sender.flush()
                line = lines.get(TICK)
            if line is None:
                sender.frame(IDLE)
                continue
            if "rate" in line:
                sender.pace.rate = line["rate"]
            for item in line.get("items", ()):
                ahead.want(item)
            if not _sent(sender, ahead):
                return 1
            if line.get("end"):
                sender.frame(FINISH)
                sender.flush()
                if sock is not None:
                    tls.part(sock)
                return 0
    except gcs.GcsError as error:
        sys.stderr.write(str(error) + "\n")  # stdout carries frames
        return 1
    except OSError as error:  # the receiver has ended, and says why on its own channel
        if error.errno not in (errno.EPIPE, errno.ECONNRESET) and sock is None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.buffer.fileno())
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
        except gcs.GcsError as error:
            return sender.failed(error.message)
        if len(data) < min(gcs.CHUNK, item["length"] - start):
            return sender.failed("{} bytes, the manifest says {}".format(start + len(data), item["size"]))
        view = memoryview(data)
        while view:
            size = min(sender.pace.piece, len(view))
            sender.frame(DATA, bytes(view[:size]))
            sender.pace.took(size)
            view = view[size:]
    return True
