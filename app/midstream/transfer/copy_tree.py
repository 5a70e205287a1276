"""Copy a tree of objects (a checkpoint, a token cache) from one host to another, verified at the far end.

There is no journal: what lies on the target's disk says how far a copy came. An object has its own name there
only if its bytes once had the manifest's hash, and it is hashed again before it is skipped; of one that was under way
the chunks whose hashes are the source's are kept. The manifest is written last. Whatever was killed, whenever, the
same call goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Empty, Queue
from threading import Event
from typing import Any

from midstream.errors import MidstreamError
from midstream.hosts.host import Host
from midstream.hosts.rpc.remote_program import Cancelled
from midstream.hosts.ssh.ssh_host import SshMachine
from midstream.remote.copy.allowlist import CHECKPOINT, HISTORY
from midstream.transfer.copy_settings import AUTO, RELAY, CopySettings, of_hosts
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.progress import Meter
from midstream.transfer.report import CopyReport, Progress
from midstream.transfer.route import LATENT, Link, Route, probe
from midstream.transfer.stream import Events, Item, Stream
from midstream.transfer.stream_pool import (
    CHUNK,
    EARLY,
    POLL,
    SMALL,
    WORTHWHILE,
    Early,
    Load,
    Sending,
    disk_full,
    ranges,
    split,
    told,
)
from midstream.transfer.target_session import Session, new_generation
from midstream.transfer.tree_contents import CALL, Contents, malformed, read_contents
from midstream_engine import records


def copy_objects(
    source: Host,
    source_dir: str,
    target: Host,
    target_dir: str,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    streams: int = 0,
    settings: CopySettings | None = None,
    kind: str = CHECKPOINT,
) -> CopyReport:
    """Make ``target_dir`` hold what the manifest in ``source_dir`` names. The manifest's file arrives byte for byte,
    last, and only when every object is verified at the target. ``streams`` and ``settings``: see `CopySettings`.
    ``kind`` is what the tree has to be: a manifest that names anything else is refused
    (`midstream.remote.copy.allowlist`).

    TransferError names the object that is missing or corrupt at the source, or the bytes that do not fit;
    Cancelled; LostContact. After each of them the target is without a new manifest, and the same call
    sends only what is not there yet."""
    settings = settings or of_hosts(source, target)
    if streams:
        settings = replace(settings, streams=streams)
    return copy_tree(
        Endpoint(source, source_dir),
        Endpoint(target, target_dir),
        manifest_name=manifest_name,
        progress=progress,
        cancel=cancel,
        settings=settings,
        kind=kind,
    )


def copy_tree(
    source: Endpoint,
    target: Endpoint,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
    kind: str = CHECKPOINT,
) -> CopyReport:
    """`copy_objects` between places, of which one may be a bucket (`bucket_place`)."""
    contents = read_contents(source, manifest_name, kind)
    return copy_contents(contents, target, manifest=manifest_name, progress=progress, cancel=cancel, settings=settings)


def copy_contents(
    contents: Contents,
    target: Endpoint,
    *,
    manifest: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> CopyReport:
    """As `copy_objects`, for a tree that was looked at already."""
    started = time.monotonic()
    by_source = contents.by_source()
    settings = settings or of_hosts(contents.first.host, target.host)
    copy = _Copy(contents, target, manifest, progress, cancel, settings, by_source, started)
    return copy.run()


@dataclass
class _Copy:
    contents: Contents
    target: Endpoint
    manifest: str
    progress: Callable[[Progress], None] | None
    cancel: Event | None
    settings: CopySettings
    by_source: list[tuple[Endpoint, list[dict[str, Any]]]]
    started: float
    alone: bool = True

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [entry for _, lot in self.by_source for entry in lot]

    def run(self) -> CopyReport:
        objects = self.objects
        meter = Meter(sum(entry["size"] for entry in objects), len(objects), self.progress)
        meter.publish()
        events: Events = Queue()
        generation = new_generation()
        with (
            _links(self.by_source, self.target, self.settings) as links,
            self._early(links, generation, events) as early,
            _session(
                self.target,
                objects,
                events,
                manifest=self.manifest,
                text=self.contents.text,
                generation=generation,
                kind=self.contents.kind,
            ) as session,
        ):
            found = self._survey(session, events, meter, objects)
            routes, loads = self._plan(session, found, links, meter)
            if len(loads) == 1:
                loads[0].early = early
            sending = Sending(
                session,
                events,
                loads,
                meter,
                explain=self._explain,
                rate_limit=self.settings.rate_limit,
                cancel=self.cancel,
            )
            sending.run(set(found.absent))
            session.commit()
            self._until(session, events, "committed", lambda report: None, meter)
        return CopyReport(
            objects=len(objects),
            objects_sent=len(found.absent),
            bytes=meter.bytes_total,
            bytes_sent=sending.bytes_sent,
            seconds=time.monotonic() - self.started,
            skipped=tuple(sorted([*found.present, *found.held])),
            linked=tuple(sorted(found.held)),
            routes=tuple(routes),
        )

    @contextmanager
    def _early(self, links: Mapping[str, Future[Link]], generation: str, events: Events) -> Iterator[list[Early]]:
        """The first streams of a copy from one place, opened before it is known what has to be sent."""
        if len(self.by_source) != 1:
            yield []
            return
        [(place, lot)] = self.by_source
        far = all(isinstance(each.host, SshMachine) for each in (place, self.target))
        total = sum(entry["size"] for entry in lot)

        def way(number: int) -> Link:
            # Only between two SSH hosts the first has to know it. One that has not answered yet is a long one.
            if far or self.target.in_bucket or place.in_bucket:
                return links[str(place)].result()
            try:
                return links[str(place)].result(timeout=2 * LATENT if number else 0.0)
            except TimeoutError:
                return Link("ssh", 2 * LATENT)

        def begin(number: int) -> Stream | None:
            route = Route(place, self.target, way(number), self.settings, self.contents.kind)
            if number and not (route.crowded and number < min(route.streams, total // WORTHWHILE)):
                return None
            return route.open(generation, events, small=total < SMALL)

        early = [Early(partial(begin, number)) for number in range(EARLY if total >= EARLY * WORTHWHILE else 1)]
        try:
            yield early
        finally:
            for each in early:
                each.close()

    # ----------------------------------------------------------------------------------- what is there already

    def _survey(self, session: Session, events: Events, meter: Meter, objects: list[dict[str, Any]]) -> _Found:
        """What the target has. Reads it there."""
        sizes = {entry["path"]: entry["size"] for entry in objects}
        found = _Found()

        def take(report: dict[str, Any]) -> None:
            if report["event"] in ("present", "held"):
                known = [path for path in report["objects"] if path in sizes]
                (found.present if report["event"] == "present" else found.held).extend(known)
                for path in known:
                    meter.present(path, sizes[path])
            elif report["event"] == "part":
                found.parts[report["path"]] = report["chunks"]

        self._until(session, events, "ready", take, meter)
        there = {*found.present, *found.held}
        found.absent = {entry["path"] for entry in objects if entry["path"] not in there}
        return found

    def _until(
        self,
        session: Session,
        events: Events,
        last: str,
        take: Callable[[dict[str, Any]], None],
        meter: Meter,
    ) -> None:
        """Take the session's reports up to the event ``last``."""
        while True:
            if self.cancel is not None and self.cancel.is_set():
                raise Cancelled(f"the copy to {self.target} was cancelled")
            try:
                origin, report = events.get(timeout=POLL)
            except Empty:
                continue
            if origin is not session:
                continue  # a stream that was closed
            if report["event"] == last:
                return
            if report["event"] == "problem":
                raise self._refused(report, meter)
            if report["event"] == "ended":
                raise session.why()
            take(report)

    def _refused(self, report: dict[str, Any], meter: Meter) -> MidstreamError:
        if report["kind"] == "other":
            return TransferError(
                f"{self.target} holds another tree than {self.contents.first}",
                "remove it, or copy to another directory",
            )
        if report["kind"] == "full":
            needed = report.get("needed", meter.bytes_total - meter.bytes_present - meter.bytes_sent)
            return disk_full(self.target, needed, report["free"])
        return TransferError(told(self.target, report), report.get("hint", ""), report.get("path", ""))

    # --------------------------------------------------------------------------------------- what has to be sent

    def _plan(
        self, session: Session, found: _Found, links: Mapping[str, Future[Link]], meter: Meter
    ) -> tuple[list[str], list[Load]]:
        """The way of each source, in words, and its work. Chunks that lie there are compared with the source's."""
        routes, loads = [], []
        for place, lot in self.by_source:
            absent = [entry for entry in lot if entry["path"] in found.absent]
            if not absent:
                continue
            link = links[str(place)].result()
            route = Route(place, self.target, link, self.settings, self.contents.kind)
            parts = [entry for entry in absent if found.parts.get(entry["path"])]
            begun = {entry["path"] for entry in parts}
            items: list[Item] = []
            for entry, kept in self._compared(place, parts, found.parts):
                session.landed([[entry["path"], offset, length] for offset, length in kept])
                meter.landed_before(sum(length for _, length in kept))
                items += ranges(entry, _gaps(entry["size"], kept))
            # A bucket joins what one stream brings of an object; what several bring it has to be asked for again.
            ways = 1 if self.target.in_bucket else route.streams
            items += split([entry for entry in absent if entry["path"] not in begun], ways)
            routes.append(link.text(place.host.name, self.target.host.name))
            loads.append(Load(route, deque(items)))
        return routes, loads

    def _compared(
        self, place: Endpoint, parts: list[dict[str, Any]], chunks: Mapping[str, Sequence[Sequence[Any]]]
    ) -> Iterator[tuple[dict[str, Any], list[tuple[int, int]]]]:
        """Of each object that was under way the (offset, length) of chunks with the source's hashes."""
        asked = [[entry["path"], offset, length] for entry in parts for offset, length, _ in chunks[entry["path"]]]
        if not asked:
            return
        answer = place.host.call("verify.objects.digests", directory=place.directory, ranges=asked, timeout=CALL)
        if len(answer) != len(asked):
            raise malformed(place, "verify.objects.digests")
        digests = iter(answer)
        for entry in parts:
            kept = [
                (offset, length)
                for (offset, length, theirs), ours in zip(chunks[entry["path"]], digests, strict=False)
                if theirs == ours
            ]
            yield entry, kept

    def _explain(self, path: str, what: str) -> MidstreamError:
        there = ((place, entry) for place, lot in self.by_source for entry in lot if entry["path"] == path)
        place, entry = next(there, (None, None))
        if place is None or entry is None:
            return TransferError(f"{self.target}: an object that nobody sent is wrong there", "run it again")
        wrong = place.host.call("verify.objects.check", directory=place.directory, entry=entry, timeout=CALL)
        if wrong is not None:
            return TransferError(f"object {shown(path)} of {place} is corrupt: {wrong}", "copy another one", path)
        return TransferError(
            f"object {shown(path)} changed on its way from {place} to {self.target}: {what}", "run it again", path
        )


@dataclass
class _Found:
    """What the target has of the objects: paths, and chunks ``[offset, length, sha256]`` of those under way."""

    present: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    parts: dict[str, list[list[Any]]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


def _gaps(size: int, kept: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What is left of an object between the chunks that are kept, in ranges of a chunk at most."""
    there = set(kept)
    for start in range(0, size, CHUNK):
        piece = (start, min(CHUNK, size - start))
        if piece not in there:
            yield piece


@contextmanager
def _session(target: Endpoint, objects: list[dict[str, Any]], events: Events, **named: Any) -> Iterator[Session]:
    session = Session(target, objects, events, **named)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def _links(
    by_source: Sequence[tuple[Endpoint, list[dict[str, Any]]]], target: Endpoint, settings: CopySettings
) -> Iterator[Mapping[str, Future[Link]]]:
    """The ways from the sources, looked for while the target is read."""
    with ThreadPoolExecutor(max(1, len(by_source))) as pool:
        probes = {}
        for place, lot in by_source:
            both = isinstance(place.host, SshMachine) and isinstance(target.host, SshMachine)
            small = sum(entry["size"] for entry in lot) < WORTHWHILE and settings.route == AUTO
            wanted = replace(settings, route=RELAY) if both and small else settings  # not worth a probe
            probes[str(place)] = pool.submit(probe, place.host, target.host, wanted)
        yield probes


def send_files(
    source: Endpoint,
    target: Endpoint,
    files: Sequence[dict[str, Any]],
    meter: Meter,
    *,
    explain: Callable[[str, str], MidstreamError],
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> None:
    """Send files of a history (``{path, size, sha256}``, ``offset`` where only the file's end is wanted) that replace
    those of the same names. They are no tree: there is no manifest, and none that lies there is looked at."""
    settings = settings or of_hosts(source.host, target.host)
    events: Events = Queue()
    items = [item for entry in files for item in ranges(entry, [(0, entry["size"])])]
    with _session(target, list(files), events, manifest=None, survey=False, kind=HISTORY) as session:
        contents = Contents(source, "", tuple(files), kind=HISTORY)
        copy = _Copy(contents, target, "", None, cancel, settings, [], time.monotonic())
        copy._until(session, events, "ready", lambda report: None, meter)
        if files:
            link = probe(source.host, target.host, replace(settings, route=RELAY))
            load = Load(Route(source, target, link, replace(settings, streams=1), HISTORY), deque(items))
            sending = Sending(
                session, events, [load], meter, explain=explain, rate_limit=settings.rate_limit, cancel=cancel
            )
            sending.run({entry["path"] for entry in files})
        session.commit()
        copy._until(session, events, "committed", lambda report: None, meter)
