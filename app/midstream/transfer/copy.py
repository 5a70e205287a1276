"""Copy a tree of objects (a checkpoint, a token cache) from one host to another, verified at the far end.

There is no journal: what lies on the target's disk says how far a copy came. An object has its own name there
only if its bytes once had the manifest's hash, and it is hashed again before it is skipped; of one that was under way
the chunks whose hashes are the source's are kept. The manifest is written last. Whatever was killed, whenever, the
same call goes on.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from threading import Event
from typing import Any

from midstream.errors import MidstreamError, RemoteError
from midstream.hosts.base import Host
from midstream.hosts.programs import Cancelled
from midstream.hosts.ssh import SshMachine
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.model import CopyReport, Progress
from midstream.transfer.places import Place
from midstream.transfer.progress import Meter
from midstream.transfer.route import Link, Route, probe
from midstream.transfer.session import Session
from midstream.transfer.settings import AUTO, RELAY, CopySettings, of_hosts
from midstream.transfer.stream import Events, Item
from midstream.transfer.streams import CHUNK, POLL, WORTHWHILE, Load, Sending, disk_full, ranges, split, told
from midstream_engine import records

CALL = 600.0  # seconds for a call that reads one manifest, or hashes one object


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
) -> CopyReport:
    """Make ``target_dir`` hold what the manifest in ``source_dir`` names. The manifest's file arrives byte for byte,
    last, and only when every object is verified at the target. ``streams`` and ``settings``: see `CopySettings`.

    TransferError names the object that is missing or corrupt at the source, or the bytes that do not fit;
    Cancelled; LostContact. After each of them the target is without a new manifest, and the same call
    sends only what is not there yet."""
    settings = settings or of_hosts(source, target)
    if streams:
        settings = replace(settings, streams=streams)
    return copy_tree(
        Place(source, source_dir),
        Place(target, target_dir),
        manifest_name=manifest_name,
        progress=progress,
        cancel=cancel,
        settings=settings,
    )


def copy_tree(
    source: Place,
    target: Place,
    *,
    manifest_name: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> CopyReport:
    """`copy_objects` between places, of which one may be a bucket (`bucket_place`)."""
    contents = read_contents(source, manifest_name)
    return copy_contents(contents, target, manifest=manifest_name, progress=progress, cancel=cancel, settings=settings)


@dataclass(frozen=True)
class Contents:
    """A tree that is to be copied: its manifest's text as the target shall have it, and which objects come from where.
    ``first`` is where the manifest was read; ``problems`` are (path, what is wrong) of the objects there, by their
    sizes."""

    first: Place
    text: str
    objects: tuple[dict[str, Any], ...]
    problems: tuple[tuple[str, str], ...] = ()
    holders: Mapping[str, Place] = field(default_factory=dict)  # other hosts, by the names that objects give them
    held: Mapping[str, str] = field(default_factory=dict)  # path -> name of its host, where there are holders

    def only(self, wanted: Callable[[str], bool]) -> Contents:
        """Without the objects that are not wanted."""
        return replace(self, objects=tuple(entry for entry in self.objects if wanted(entry["path"])))

    def held_by(self, holders: Mapping[str, Place]) -> Contents:
        """What other hosts hold comes from there: host, as the manifest's objects name it -> its place."""
        held = {entry["path"]: entry.get("host", "") for entry in json.loads(self.text)["objects"]}
        return replace(self, holders=holders, held=held)

    def by_source(self) -> list[tuple[Place, list[dict[str, Any]]]]:
        """The objects of each place. TransferError where one is missing there, or of another size."""
        lots: dict[str, list[dict[str, Any]]] = {}
        for entry in self.objects:
            name = self.held.get(entry["path"], "")
            lots.setdefault(name if name in self.holders else "", []).append(entry)
        here = {entry["path"] for entry in lots.get("", ())}
        missing = [(self.first, path, what) for path, what in self.problems if path in here]
        for name, lot in lots.items():
            if name:
                place = self.holders[name]
                found = place.host.call("tree.missing", directory=place.directory, objects=lot, timeout=CALL)
                missing += [(place, path, what) for path, what in found]
        if missing:
            place, path, what = missing[0]
            more = f", and {len(missing) - 1} more like it" if len(missing) > 1 else ""
            raise TransferError(f"object {shown(path)} of {place}: {what}{more}", "copy another one", path)
        return [(self.holders[name] if name else self.first, lot) for name, lot in lots.items()]


def read_contents(source: Place, manifest: str) -> Contents:
    """What the tree's manifest names. TransferError where it is no tree."""
    try:
        found = source.host.call("tree.describe", directory=source.directory, manifest=manifest, timeout=CALL)
    except RemoteError as error:
        if error.kind != "RecordError":
            raise
        raise TransferError(error.message) from error
    problems = tuple((path, what) for path, what in found["problems"])
    return Contents(source, found["manifest"], tuple(found["objects"]), problems)


def copy_contents(
    contents: Contents,
    target: Place,
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
    target: Place
    manifest: str
    progress: Callable[[Progress], None] | None
    cancel: Event | None
    settings: CopySettings
    by_source: list[tuple[Place, list[dict[str, Any]]]]
    started: float

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [entry for _, lot in self.by_source for entry in lot]

    def run(self) -> CopyReport:
        objects = self.objects
        meter = Meter(sum(entry["size"] for entry in objects), len(objects), self.progress)
        meter.publish()
        events: Events = Queue()
        with (
            _links(self.by_source, self.target, self.settings) as links,
            _session(self.target, objects, events, manifest=self.manifest, text=self.contents.text) as session,
        ):
            found = self._survey(session, events, meter, objects)
            routes, loads = self._plan(session, found, links, meter)
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
            held=tuple(sorted(found.held)),
            routes=tuple(routes),
        )

    # ----------------------------------------------------------------------------------- what is there already

    def _survey(self, session: Session, events: Events, meter: Meter, objects: list[dict[str, Any]]) -> _Found:
        """What the target has. Reads it there."""
        sizes = {entry["path"]: entry["size"] for entry in objects}
        found = _Found()

        def take(report: dict[str, Any]) -> None:
            if report["event"] in ("present", "held"):
                (found.present if report["event"] == "present" else found.held).extend(report["objects"])
                for path in report["objects"]:
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
        return TransferError(told(self.target, report), report.get("fix", ""), report.get("path", ""))

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
            route = Route(place, self.target, link, self.settings)
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
        self, place: Place, parts: list[dict[str, Any]], chunks: Mapping[str, Sequence[Sequence[Any]]]
    ) -> Iterator[tuple[dict[str, Any], list[tuple[int, int]]]]:
        """Of each object that was under way the (offset, length) of chunks with the source's hashes."""
        asked = [[entry["path"], offset, length] for entry in parts for offset, length, _ in chunks[entry["path"]]]
        if not asked:
            return
        digests = iter(place.host.call("tree.digests", directory=place.directory, ranges=asked, timeout=CALL))
        for entry in parts:
            kept = [
                (offset, length)
                for (offset, length, theirs), ours in zip(chunks[entry["path"]], digests, strict=False)
                if theirs == ours
            ]
            yield entry, kept

    def _explain(self, path: str, what: str) -> MidstreamError:
        place, entry = next((place, entry) for place, lot in self.by_source for entry in lot if entry["path"] == path)
        wrong = place.host.call("tree.check", directory=place.directory, entry=entry, timeout=CALL)
        if wrong is not None:
            return TransferError(f"object {shown(path)} of {place} is corrupt: {wrong}", "copy another one", path)
        return TransferError(f"object {shown(path)} changed on its way to {self.target}: {what}", "run it again", path)


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
def _session(target: Place, objects: list[dict[str, Any]], events: Events, **named: Any) -> Iterator[Session]:
    session = Session(target, objects, events, **named)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def _links(
    by_source: Sequence[tuple[Place, list[dict[str, Any]]]], target: Place, settings: CopySettings
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
    source: Place,
    target: Place,
    files: Sequence[dict[str, Any]],
    meter: Meter,
    *,
    explain: Callable[[str, str], MidstreamError],
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> None:
    """Send files (``{path, size, sha256}``, ``offset`` where only the file's end is wanted) that replace those of the
    same names. They are no tree: there is no manifest, and none that lies there is looked at."""
    settings = settings or of_hosts(source.host, target.host)
    events: Events = Queue()
    items = [item for entry in files for item in ranges(entry, [(0, entry["size"])])]
    with _session(target, list(files), events, manifest=None, survey=False) as session:
        copy = _Copy(Contents(source, "", tuple(files)), target, "", None, cancel, settings, [], time.monotonic())
        copy._until(session, events, "ready", lambda report: None, meter)
        if files:
            link = probe(source.host, target.host, replace(settings, route=RELAY))
            load = Load(Route(source, target, link, replace(settings, streams=1)), deque(items))
            sending = Sending(
                session, events, [load], meter, explain=explain, rate_limit=settings.rate_limit, cancel=cancel
            )
            sending.run({entry["path"] for entry in files})
        session.commit()
        copy._until(session, events, "committed", lambda report: None, meter)
