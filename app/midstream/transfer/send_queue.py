"""Items of one source that its streams have not taken yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from midstream.transfer.early_stream import EarlyStream
from midstream.transfer.route import StreamRoute
from midstream.transfer.stream import MAX_QUEUED_BYTES, Stream
from midstream_host.copy_items import CopyItem, CopyObject, HistoryObject

MIN_STREAM_BYTES = 16 << 20  # that a further stream should move on a link of high latency
CHUNK = 8 << 20  # bytes of a range: as `midstream_host.copy.staging.CHUNK`
MIN_RANGE = 1 << 20  # bytes of a range near the end, so that all streams end at the same time
MIN_QUEUED_BYTES = 4 << 20  # that a stream has in advance near the end
BUCKET_QUEUED_BYTES = 256 << 20  # that the streams of a bucket have in advance: a program has many requests at a time
MAX_LINE_ITEMS = 512  # in one line to a sender


def split(objects: Sequence[CopyObject], streams: int) -> list[CopyItem]:
    """Return the items for objects, the large ones first.

    An object that would occupy one stream while the others are idle is cut into ranges. The others are sent complete,
    and are hashed in transit.
    """
    total = sum(entry["size"] for entry in objects)
    items: list[CopyItem] = []
    for entry in sorted(objects, key=lambda entry: (-entry["size"], entry["path"])):  # folder by folder
        size = entry["size"]
        if streams > 1 and size > max(2 * CHUNK, total / (4 * streams)):
            items += ranges(entry, ((start, min(CHUNK, size - start)) for start in range(0, size, CHUNK)))
        else:
            items += ranges(entry, [(0, size)])
    return items


def ranges(entry: CopyObject | HistoryObject, pieces: Iterable[tuple[int, int]]) -> list[CopyItem]:
    """Return the items for (offset, length) of one object."""
    path, size, sha256 = entry["path"], entry["size"], entry["sha256"]
    items: list[CopyItem] = [
        {"path": path, "size": size, "sha256": sha256, "offset": offset, "length": length} for offset, length in pieces
    ]
    if "offset" in entry:
        for item in items:
            item["begin"] = entry["offset"]
    return items


def stream_count(items: Sequence[CopyItem], streams: int, min_bytes: int = MIN_STREAM_BYTES) -> int:
    """Return how many streams, at most ``streams``, move ``min_bytes`` or more each."""
    total = sum(item["length"] for item in items)
    return max(1, min(streams, len(items), total // min_bytes))


@dataclass
class SendQueue:
    """Items of one source, and the streams that send them.

    Near the end a stream takes fewer bytes at a time.

    Attributes:
        route: The route of its streams.
        items: Items that no stream has taken.
        expected: Bytes, if items are added later (`StreamPool.add`); such objects are not cut. 0 if none are added.
        streams: The open streams.
        opening: Number of streams that are being opened.
        early: Streams that were opened before the items were known.
    """

    route: StreamRoute
    items: deque[CopyItem]
    expected: int = 0
    streams: list[Stream] = field(default_factory=list[Stream])
    opening: int = 0
    early: Sequence[EarlyStream] = ()
    remaining: int = field(init=False)
    more: bool = field(init=False)  # items will be added

    def __post_init__(self) -> None:
        self.remaining = sum(item["length"] for item in self.items)
        self.more = self.expected > 0

    @property
    def busy(self) -> bool:
        """Whether items will be added, or a stream is not done."""
        return self.more or self.opening > 0 or not all(stream.done for stream in self.streams)

    @property
    def _stream_count(self) -> int:
        return max(1, len(self.streams) + self.opening)

    @property
    def queued_bytes(self) -> int:
        """Bytes that a stream should have in advance: at most its share of what is left."""
        if self.route.source.in_bucket or self.route.target.in_bucket:
            return max(MAX_QUEUED_BYTES, BUCKET_QUEUED_BYTES // self._stream_count)
        if self.more:
            return MAX_QUEUED_BYTES
        return max(MIN_QUEUED_BYTES, min(MAX_QUEUED_BYTES, self.remaining // self._stream_count))

    def take(self) -> list[CopyItem]:
        """Remove and return the next items: about a chunk of bytes.

        Near the end only a range of one object is taken.
        """
        most = CHUNK
        if self._stream_count > 1:
            most = max(MIN_RANGE, min(CHUNK, self.remaining // (4 * self._stream_count) & ~0xFFFF))
        item = self.items.popleft()
        # In a bucket one stream has to bring all parts of an object.
        if item["length"] > most and self._stream_count > 1 and not (self.expected or self.route.target.in_bucket):
            rest = item.copy()
            rest["offset"], rest["length"] = item["offset"] + most, item["length"] - most
            self.items.appendleft(rest)
            item["length"] = most
        taken, size = [item], item["length"]
        while self.items and len(taken) < MAX_LINE_ITEMS and size + self.items[0]["length"] <= most:
            taken.append(self.items.popleft())
            size += taken[-1]["length"]
        self.remaining -= size
        return taken
