"""Streams of one copy: they share the items, and the first error ends them all."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty
from threading import Event
from typing import Protocol

from midstream.errors import MidstreamError
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.hosts.rpc.report_types import CopyLine, CopyProblem, Done, Landed, Placed
from midstream.printable import printable
from midstream.transfer.copy_problems import disk_full, reported_problem, unrequested
from midstream.transfer.early_stream import EarlyStream
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.progress import Meter
from midstream.transfer.send_queue import MIN_STREAM_BYTES, SendQueue, split, stream_count
from midstream.transfer.stream import Events, Reported, Stream, StreamEnd, StreamReporter
from midstream_core.json_types import JsonValue
from midstream_host.copy_items import CopyItem, CopyObject

MIN_CORE_BYTES = 128 << 20  # and on other links, where it adds a core: a stream costs two logins and two interpreters
SMALL_COPY = 4 << 20  # bytes below which a copy opens no connection of its own
MAX_SOURCES = 16  # that send at the same time: each is at least one login and two programs
POLL_INTERVAL = 0.1  # seconds between two checks of ``cancel``


@dataclass(frozen=True)
class Opened:
    """A stream of a queue is open."""

    queue: SendQueue
    stream: Stream


@dataclass(frozen=True)
class Refused:
    """A stream of a queue could not be opened."""

    queue: SendQueue
    error: Exception


@dataclass(frozen=True)
class Added:
    """Items for a queue; ``last``: no others follow."""

    queue: SendQueue
    items: Sequence[CopyItem]
    last: bool


class Staging(Protocol):
    """The target's staging directory of a copy."""

    @property
    def target(self) -> Endpoint: ...

    @property
    def generation(self) -> str: ...

    def landed(self, ranges: Sequence[Sequence[JsonValue]]) -> None:
        """Report ranges that the receivers have written."""
        ...


class StreamPool:
    """All streams of one copy."""

    def __init__(
        self,
        staging: Staging,
        events: Events,
        queues: Sequence[SendQueue],
        meter: Meter,
        *,
        explain: Callable[[str, str], MidstreamError],
        bandwidth_limit: float = 0.0,
        cancel: Event | None = None,
    ) -> None:
        """Prepare the streams; `run` opens them.

        Args:
            staging: The staging directory that receives the objects.
            events: Queue of the streams' reports.
            queues: The items of each source.
            meter: Counts what arrives.
            explain: Returns the error for an object (path, what is wrong) that arrived with another hash.
            bandwidth_limit: Bytes per second of all streams together; 0 for none.
            cancel: Ends the copy when it is set.
        """
        self._staging, self._events, self._meter, self._explain = staging, events, meter, explain
        self._queues = [queue for queue in queues if queue.items or queue.more]
        self._unopened = deque(self._queues)
        self._limit, self._cancel = bandwidth_limit, cancel
        self._closed = False
        self._opened: list[Stream] = []  # also streams of which `run` has not read yet that they are open
        self._lock = threading.Lock()
        self.bytes_sent = 0
        self.bytes_on_link = 0

    def run(self, waiting: set[str], *, landed: Callable[[], None] | None = None) -> None:
        """Send everything; return once each path of ``waiting`` is verified at the target.

        Reports that arrive afterwards stay in the queue of events. ``landed`` is called once, when all streams are
        done: the target may still verify what arrived in ranges.

        Raises:
            TransferError: An object is wrong, or the disk is full.
            Cancelled: The copy was cancelled.
            ConnectionLostError: A connection broke.
        """
        self._meter.begin()
        try:
            while waiting or self._unopened or any(queue.busy for queue in self._queues):
                self._open_queues()
                if landed is not None and not self._unopened and not any(queue.busy for queue in self._queues):
                    landed()
                    landed = None
                if self._cancel is not None and self._cancel.is_set():
                    raise Cancelled(f"the copy to {self._staging.target} was cancelled")
                try:
                    event = self._events.get(timeout=POLL_INTERVAL)
                except Empty:
                    continue
                self._handle(event, waiting)
            if landed is not None:
                landed()
        finally:
            with self._lock:
                self._closed = True
            for stream in self._opened:
                stream.close()

    def add(self, queue: SendQueue, objects: Sequence[CopyObject], *, last: bool = False) -> None:
        """Add objects to a queue while `run` runs, from any thread.

        ``last``: no objects follow.
        """
        self._events.put(Added(queue, split(objects, 1), last))

    def _open_queues(self) -> None:
        """Open the streams of further sources, as others are done."""
        while self._unopened and sum(queue.busy for queue in self._queues) < MAX_SOURCES:
            self._open(self._unopened.popleft())

    def _open(self, queue: SendQueue) -> None:
        small = max(queue.remaining, queue.expected) < SMALL_COPY
        min_bytes = MIN_STREAM_BYTES if queue.route.favors_streams else MIN_CORE_BYTES
        if queue.more:
            queue.opening = max(1, min(queue.route.streams, queue.expected // min_bytes))
        else:
            queue.opening = stream_count(queue.items, queue.route.streams, min_bytes)

        def work(early: EarlyStream | None) -> None:
            try:
                stream = None if early is None else early.take()
                # While the target was surveyed, which may take hours.
                if stream is not None and (stream.ended or stream.last_report is not None):
                    stream.close()
                    stream = None
                stream = stream or queue.route.open(self._staging.generation, self._events, small=small)
            except Exception as error:  # noqa: BLE001  `run` raises it
                self._events.put(Refused(queue, error))
                return
            with self._lock:
                if not self._closed:
                    self._opened.append(stream)
                    self._events.put(Opened(queue, stream))
                    return
            stream.close()

        for number in range(queue.opening):
            early = queue.early[number] if number < len(queue.early) else None
            threading.Thread(target=work, args=(early,), name="copy-open", daemon=True).start()

    def _handle(self, event: object, waiting: set[str]) -> None:
        if isinstance(event, Opened):
            queue = event.queue
            queue.opening -= 1
            queue.streams.append(event.stream)
            if event.stream.last_report is not None:  # its event may have been read before this one, and ignored
                self._reported(event.stream, event.stream.last_report, waiting)
            if event.stream.ended:  # before its event was read
                raise event.stream.failure()
            self._share(queue)
        elif isinstance(event, Refused):
            # A server may allow fewer connections: one stream is enough.
            event.queue.opening -= 1
            if not event.queue.opening and not event.queue.streams:
                raise event.error
        elif isinstance(event, Added):
            queue = event.queue
            queue.items.extend(event.items)
            queue.remaining += sum(item["length"] for item in event.items)
            queue.more = not event.last
            waiting.update(item["path"] for item in event.items)
            self._share(queue)
        elif isinstance(event, Reported | StreamEnd) and isinstance(event.origin, Stream):
            if event.origin not in self._opened:  # opened early, and not used
                return
            if isinstance(event, Reported):
                self._reported(event.origin, event.report, waiting)
            elif not event.origin.done:
                raise event.origin.failure()
        elif isinstance(event, Reported):
            self._reported(event.origin, event.report, waiting)
        elif isinstance(event, StreamEnd):
            raise event.origin.failure()

    def _reported(self, origin: StreamReporter, report: CopyLine, waiting: set[str]) -> None:
        if isinstance(report, CopyProblem):
            raise self._problem(origin, report)
        if isinstance(report, Placed):
            self._verified(report.objects, waiting)
        elif isinstance(report, Landed):
            self._landed(self._stream(origin), report, waiting)
        elif isinstance(report, Done):
            stream = self._stream(origin)
            if stream.unfinished:
                raise TransferError(
                    f"the stream from {stream.source} to {stream.target} ended before all that was requested had come",
                    f"check which program runs on {stream.source.host.name}",
                )
            stream.done = True
            self._share(self._queue_of(stream))

    def _stream(self, origin: StreamReporter) -> Stream:
        """Return the origin of a report that only a stream's receiver may send."""
        if not isinstance(origin, Stream):
            host = self._staging.target.host.name
            raise TransferError(
                f"the session on {host} reports what only a stream can", f"check which program answers on {host}"
            )
        return origin

    def _landed(self, stream: Stream, report: Landed, waiting: set[str]) -> None:
        self.bytes_sent += report.bytes
        self.bytes_on_link += report.received
        self._meter.arrived(report.bytes)
        stream.landed(report.bytes, len(report.objects) + len(report.ranges))
        self._verified(report.objects, waiting)
        if report.ranges:
            self._staging.landed(report.ranges)
        queue = self._queue_of(stream)
        if stream.needs_items(queue.queued_bytes):
            self._share(queue)

    def _verified(self, paths: Sequence[str], waiting: set[str]) -> None:
        for path in paths:
            if path in waiting:
                waiting.discard(path)
                self._meter.verified(path)

    def _queue_of(self, stream: Stream) -> SendQueue:
        queue = next((queue for queue in self._queues if stream in queue.streams), None)
        if queue is None:
            name = stream.target.host.name
            raise TransferError(
                f"{stream.target} reports bytes before any were requested", f"check which program answers on {name}"
            )
        return queue

    def _share(self, queue: SendQueue) -> None:
        """Send items to streams that need them; divide the bandwidth limit among all."""
        busy = [stream for other in self._queues for stream in other.streams if not stream.done]
        rate = self._limit / max(1, len(busy)) if self._limit else 0.0
        for stream in queue.streams:
            while queue.items and stream.needs_items(queue.queued_bytes):
                stream.send_items(queue.take(), rate, last=False)
            if not queue.items and not queue.more and not stream.ending:
                stream.send_items([], rate, last=True)
        if self._limit:
            for stream in busy:
                stream.set_rate(rate)

    def _problem(self, origin: StreamReporter, report: CopyProblem) -> MidstreamError:
        kind, path, message = report.kind, report.path, report.message
        target = self._staging.target
        if kind == "source":
            source = origin.source if isinstance(origin, Stream) else self._queues[0].route.source
            return TransferError(f"object {printable(path)} of {source}: {message}", path=path)
        if kind == "unrequested":
            source = origin.source if isinstance(origin, Stream) else self._queues[0].route.source
            return unrequested(source, path, message)
        if kind == "hash":
            return self._explain(path, message)
        if kind == "full":
            remaining = self._meter.bytes_total - self._meter.bytes_present - self._meter.bytes_sent
            return disk_full(target, remaining if report.needed is None else report.needed, report.free)
        if kind == "truncated":
            return origin.failure()
        if kind == "protocol" and isinstance(origin, Stream):
            return TransferError(
                f"the bytes that {origin.source} sent to {target} are malformed: {message}",
                f"none of them were stored; check which program runs on {origin.source.host.name}",
            )
        return reported_problem(target, report)
