"""Several streams at once: objects shared out among them, their reports merged, all of them ended together."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from queue import Empty, Queue
from threading import Event
from typing import Any

from midstream.hosts.programs import Cancelled
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.progress import Meter
from midstream.transfer.route import Route, Stream

STREAMS = 2  # one core each for encryption; more pay off on links with latency
WORTHWHILE = 16 << 20  # bytes a stream should carry at least
POLL = 0.1  # seconds between two looks at ``cancel``


def share_out(objects: Sequence[dict[str, Any]], streams: int) -> list[list[dict[str, Any]]]:
    """At most ``streams`` lots of about equal bytes, each in the objects' order. Small trees take one stream."""
    total = sum(entry["size"] for entry in objects)
    count = max(1, min(streams, len(objects), total // WORTHWHILE))
    heap = [(0, lot) for lot in range(count)]
    lots: list[list[int]] = [[] for _ in range(count)]
    for index in sorted(range(len(objects)), key=lambda index: -objects[index]["size"]):
        size, lot = heapq.heappop(heap)
        lots[lot].append(index)
        heapq.heappush(heap, (size + objects[index]["size"], lot))
    return [[objects[index] for index in sorted(lot)] for lot in lots if lot]


def send_all(
    route: Route,
    objects: Sequence[dict[str, Any]],
    meter: Meter,
    *,
    explain: Callable[[str, str], TransferError],
    streams: int = STREAMS,
    cancel: Event | None = None,
) -> None:
    """Send ``objects`` (``{path, size, sha256}``) and return once every one is verified at the target.

    ``explain(path, what)`` words the error of an object that arrived with another hash. Other errors: TransferError,
    Cancelled, LostContact. At the first of them all streams are closed."""
    if not objects:
        return
    events: Queue[tuple[Stream, dict[str, Any]]] = Queue()
    running: list[Stream] = []
    finished: set[int] = set()
    meter.begin()
    try:
        for lot in share_out(objects, streams):
            running.append(route.start(lot, events))
        while len(finished) < len(running):
            if cancel is not None and cancel.is_set():
                raise Cancelled(f"the copy to {route.target} was cancelled")
            try:
                stream, report = events.get(timeout=POLL)
            except Empty:
                continue
            event = report["event"]
            if event == "bytes":
                meter.arrived(report["bytes"])
            elif event == "object":
                meter.verified(report["path"])
            elif event == "done":
                finished.add(id(stream))
            elif event == "problem":
                raise _problem(route, stream, report, meter, explain)
            elif event == "ended" and id(stream) not in finished:
                raise stream.why()
    finally:
        for stream in running:
            stream.close()


def _problem(
    route: Route,
    stream: Stream,
    report: dict[str, Any],
    meter: Meter,
    explain: Callable[[str, str], TransferError],
) -> Exception:
    kind, path, message = report["kind"], report.get("path", ""), report.get("message", "")
    if kind == "source":
        return TransferError(f"object {shown(path)} of {route.source}: {message}", path=path)
    if kind == "hash":
        return explain(path, message)
    if kind == "full":
        left = meter.bytes_total - meter.bytes_present - meter.bytes_sent
        return disk_full(route, left, report["free"])
    if kind == "truncated":
        return stream.why()
    return TransferError(f"{route.target}: {message}")


def disk_full(route: Route, needed: int, free: int) -> TransferError:
    """``needed`` and ``free`` in bytes."""
    return TransferError(
        f"the disk of {route.target} is full: {needed:,} bytes needed, {free:,} free",
        f"make room on {route.target.host.name} and run it again",
    )
