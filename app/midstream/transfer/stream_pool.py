"""Several streams at once: work shared out among them as they take it, their reports merged, all ended together."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty
from threading import Event
from typing import Any, Protocol

from midstream.errors import MidstreamError
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.progress import Meter
from midstream.transfer.route import Route
from midstream.transfer.stream import AHEAD, Events, Item, Stream

WORTHWHILE = 16 << 20  # bytes a stream should carry at least, where windows wait for the round trip
WORTH_A_CORE = 128 << 20  # and where it is only a core more: a stream begins with two logins and two interpreters
SMALL = 4 << 20  # bytes below which a copy opens no connection of its own
CHUNK = 8 << 20  # bytes of a range: as `midstream.remote.copy.staging.CHUNK`
EARLY = 3  # streams that are opened before it is known what has to be sent
LEAST = 1 << 20  # bytes of a range near the end, where the streams are to have done at the same time
STOCK = 4 << 20  # bytes that a stream has in hand there: what it sends until it hears of more
LOT = 512  # items in one line to a sender
POLL = 0.1  # seconds between two looks at ``cancel``


def split(objects: Sequence[dict[str, Any]], streams: int) -> list[Item]:
    """Objects as items. One that would keep a stream busy while the others have nothing left goes in ranges; the rest
    goes whole, and is hashed in passing. Large ones first: the small ones fill up the end."""
    total = sum(entry["size"] for entry in objects)
    items: list[Item] = []
    for entry in sorted(objects, key=lambda entry: -entry["size"]):
        size = entry["size"]
        if streams > 1 and size > max(2 * CHUNK, total / (4 * streams)):
            items += ranges(entry, ((start, min(CHUNK, size - start)) for start in range(0, size, CHUNK)))
        else:
            items += ranges(entry, [(0, size)])
    return items


def ranges(entry: dict[str, Any], pieces: Iterable[tuple[int, int]]) -> list[Item]:
    """Items for (offset, length) of one object."""
    kept = {key: entry[key] for key in ("path", "size", "sha256")}
    start = {"from": entry["offset"]} if entry.get("offset") else {}
    return [{**kept, **start, "offset": offset, "length": length} for offset, length in pieces]


def worthwhile(items: Sequence[Item], streams: int, each: int = WORTHWHILE) -> int:
    """How many streams of at least ``each`` bytes these items deserve."""
    total = sum(item["length"] for item in items)
    return max(1, min(streams, len(items), total // each))


@dataclass
class Load:
    """What one source has to send, and the way that it takes. Towards the end the streams take less at a time. Where
    ``expected`` bytes are given, items come one after the other (`Sending.add`), until it is said that there are no
    more; each goes whole."""

    route: Route
    items: deque[Item]
    expected: int = 0
    streams: list[Stream] = field(default_factory=list)
    opening: int = 0
    early: Sequence[Early] = ()  # the first of them, on their way already
    left: int = field(init=False)  # bytes of the items
    more: bool = field(init=False)  # to come

    def __post_init__(self) -> None:
        self.left = sum(item["length"] for item in self.items)
        self.more = self.expected > 0

    @property
    def busy(self) -> bool:
        return self.more or self.opening > 0 or not all(stream.done for stream in self.streams)

    @property
    def _ways(self) -> int:
        return max(1, len(self.streams) + self.opening)

    @property
    def stock(self) -> int:
        """Bytes that a stream should have in hand: no more than its share of what is left."""
        return AHEAD if self.more else max(STOCK, min(AHEAD, self.left // self._ways))

    def take(self) -> list[Item]:
        """The next items, a chunk of bytes or a little more; near the end the next piece of one."""
        most = CHUNK
        if self._ways > 1:
            most = max(LEAST, min(CHUNK, self.left // (4 * self._ways) & ~0xFFFF))
        item = self.items.popleft()
        # A bucket joins what one stream brings of an object.
        if item["length"] > most and self._ways > 1 and not (self.expected or self.route.target.in_bucket):
            rest = {"offset": item["offset"] + most, "length": item["length"] - most}
            self.items.appendleft({**item, **rest})
            item = {**item, "length": most}
        lot, size = [item], item["length"]
        while self.items and len(lot) < LOT and size + self.items[0]["length"] <= most:
            lot.append(self.items.popleft())
            size += lot[-1]["length"]
        self.left -= size
        return lot


class Early:
    """A stream that is opened while it is still being found out what has to be sent: logins and interpreters take as
    long as that does. Who does not need it closes it."""

    def __init__(self, begin: Callable[[], Stream | None]):
        self._begin = begin
        self._opened: Future[Stream | None] = Future()
        self._taken = False
        threading.Thread(target=self._open, name="copy-early", daemon=True).start()

    def _open(self) -> None:
        try:
            self._opened.set_result(self._begin())
        except BaseException as error:  # noqa: BLE001  raised where it is taken
            self._opened.set_exception(error)

    def take(self) -> Stream | None:
        """None where it turned out not to be worth it. Its errors are those of `Route.open`."""
        self._taken = True
        return self._opened.result()

    def close(self) -> None:
        """It is ended as soon as it is open, unless it was taken."""
        if self._taken:
            return

        def end(opened: Future[Stream | None]) -> None:
            if opened.exception() is None and (stream := opened.result()) is not None:
                stream.close()

        self._opened.add_done_callback(end)


class Staged(Protocol):
    """Where a copy's objects are put together."""

    @property
    def target(self) -> Endpoint: ...

    @property
    def generation(self) -> str: ...

    def landed(self, ranges: Sequence[Sequence[Any]]) -> None: ...


class Sending:
    """All streams of one copy. ``explain(path, what)`` words the error of an object that arrived with another hash."""

    def __init__(
        self,
        session: Staged,
        events: Events,
        loads: Sequence[Load],
        meter: Meter,
        *,
        explain: Callable[[str, str], MidstreamError],
        rate_limit: float = 0.0,
        cancel: Event | None = None,
    ):
        self._session, self._events, self._meter, self._explain = session, events, meter, explain
        self._loads = [load for load in loads if load.items or load.more]
        self._limit, self._cancel = rate_limit, cancel
        self._closed = False
        self._lock = threading.Lock()
        self.bytes_sent = 0

    def run(self, waiting: set[str]) -> None:
        """Send everything, and return once each path of ``waiting`` is verified at the target. TransferError,
        Cancelled, LostContact; at the first of them all streams are closed."""
        self._meter.begin()
        try:
            for load in self._loads:
                self._open(load)
            while waiting or any(
                load.more or load.opening or not all(s.done for s in load.streams) for load in self._loads
            ):
                if self._cancel is not None and self._cancel.is_set():
                    raise Cancelled(f"the copy to {self._session.target} was cancelled")
                try:
                    origin, report = self._events.get(timeout=POLL)
                except Empty:
                    continue
                self._handle(origin, report, waiting)
        finally:
            with self._lock:
                self._closed = True
            for stream in [*(stream for load in self._loads for stream in load.streams), *self._unseen()]:
                stream.close()

    def add(self, load: Load, objects: Sequence[dict[str, Any]], *, last: bool = False) -> None:
        """More objects of a load that grows; ``last``: there is no more after them. Any thread may, while `run` is at
        work."""
        self._events.put((load, {"event": "more", "items": split(objects, 1), "last": last}))

    def _unseen(self) -> Iterator[Stream]:
        """Streams that were opened, and whose event nobody took."""
        with contextlib.suppress(Empty):
            while True:
                _, report = self._events.get_nowait()
                if report["event"] == "opened":
                    yield report["stream"]

    def _open(self, load: Load) -> None:
        small = max(load.left, load.expected) < SMALL
        each = WORTHWHILE if load.route.crowded else WORTH_A_CORE
        if load.more:
            load.opening = max(1, min(load.route.streams, load.expected // each))
        else:
            load.opening = worthwhile(load.items, load.route.streams, each)

        def work(early: Early | None) -> None:
            try:
                stream = None if early is None else early.take()
                stream = stream or load.route.open(self._session.generation, self._events, small=small)
            except Exception as error:  # noqa: BLE001  raised where the events are read
                self._events.put((load, {"event": "refused", "error": error}))
                return
            with self._lock:
                if not self._closed:
                    self._events.put((load, {"event": "opened", "stream": stream}))
                    return
            stream.close()

        for number in range(load.opening):
            early = load.early[number] if number < len(load.early) else None
            threading.Thread(target=work, args=(early,), name="copy-open", daemon=True).start()

    def _handle(self, origin: Any, report: dict[str, Any], waiting: set[str]) -> None:
        event = report["event"]
        if event == "opened":
            origin.opening -= 1
            origin.streams.append(report["stream"])
            if report["stream"].ended:  # before anybody listened
                raise report["stream"].why()
            self._share(origin)
        elif event == "refused":
            # A server that lets in fewer connections than we ask for is no reason to fail.
            origin.opening -= 1
            if not origin.opening and not origin.streams:
                raise report["error"]
        elif event == "more":
            origin.items.extend(report["items"])
            origin.left += sum(item["length"] for item in report["items"])
            origin.more = not report["last"]
            waiting.update(item["path"] for item in report["items"])
            self._share(origin)
        elif event == "landed":
            self._landed(origin, report, waiting)
        elif event == "placed":
            self._verified(report["objects"], waiting)
        elif event == "done":
            origin.done = True
            self._share(self._load_of(origin))
        elif event == "problem":
            raise self._problem(origin, report)
        elif event == "ended" and not (isinstance(origin, Stream) and origin.done):
            raise origin.why()

    def _landed(self, stream: Stream, report: dict[str, Any], waiting: set[str]) -> None:
        count = report["bytes"]
        self.bytes_sent += count
        self._meter.arrived(count)
        stream.landed(count, len(report["objects"]) + len(report["ranges"]))
        self._verified(report["objects"], waiting)
        if report["ranges"]:
            self._session.landed(report["ranges"])
        load = self._load_of(stream)
        if stream.hungry(load.stock):
            self._share(load)

    def _verified(self, paths: Sequence[str], waiting: set[str]) -> None:
        for path in paths:
            if path in waiting:
                waiting.discard(path)
                self._meter.verified(path)

    def _load_of(self, stream: Stream) -> Load:
        return next(load for load in self._loads if stream in load.streams)

    def _share(self, load: Load) -> None:
        """Give work to the streams that have little left, each its share of the rate."""
        busy = [stream for each in self._loads for stream in each.streams if not stream.done]
        rate = self._limit / max(1, len(busy)) if self._limit else 0.0
        for stream in load.streams:
            while load.items and stream.hungry(load.stock):
                stream.feed(load.take(), rate, last=False)
            if not load.items and not load.more and not stream.ending:
                stream.feed([], rate, last=True)
        if self._limit:
            for stream in busy:
                stream.pace(rate)

    def _problem(self, origin: Any, report: dict[str, Any]) -> MidstreamError:
        kind, path, message = report["kind"], report.get("path", ""), report.get("message", "")
        target = self._session.target
        if kind == "source":
            source = origin.source if isinstance(origin, Stream) else self._loads[0].route.source
            return TransferError(f"object {shown(path)} of {source}: {message}", path=path)
        if kind == "unrequested":
            source = origin.source if isinstance(origin, Stream) else self._loads[0].route.source
            return unrequested(source, path, message)
        if kind == "hash":
            return self._explain(path, message)
        if kind == "full":
            left = self._meter.bytes_total - self._meter.bytes_present - self._meter.bytes_sent
            return disk_full(target, report.get("needed", left), report["free"])
        if kind == "truncated":
            return origin.why()
        if kind == "protocol" and isinstance(origin, Stream):
            return TransferError(
                f"what {origin.source} sent to {target} is malformed: {message}",
                f"nothing of it was kept; look at what runs on {origin.source.host.name}",
            )
        return TransferError(told(target, report), report.get("hint", ""))


def unrequested(source: Endpoint, path: str, message: str) -> TransferError:
    """A source that sends what nobody has requested."""
    what = f"object {shown(path)}" if path else "an object"
    return TransferError(
        f"{source} sent {what} as nobody requested it: {message}",
        f"the copy has ended and nothing of it was kept; look at what runs on {source.host.name}",
        path,
    )


def told(target: Endpoint, report: dict[str, Any]) -> str:
    """A problem in one line; a bucket's words name it themselves."""
    message = report.get("message", "")
    return message if target.in_bucket else f"{target}: {message}"


def disk_full(target: Endpoint, needed: int, free: int) -> TransferError:
    """``needed`` and ``free`` in bytes."""
    return TransferError(
        f"the disk of {target} is full: {needed:,} bytes needed, {free:,} free",
        f"make room on {target.host.name} and run it again",
    )
