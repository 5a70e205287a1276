"""Copy of a tree of objects from one endpoint to another, verified at the target.

Examples of trees are a checkpoint and a token cache.

There is no journal: the target's disk shows how far a copy came. An object has its own name there only if its bytes
once had the manifest's hash, and it is hashed again before it is skipped. Of a partial object, the chunks whose hashes
are the source's stay. The manifest is written last. If a program is killed, the same call continues the copy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import Queue
from threading import Event

from midstream.errors import MidstreamError
from midstream.hosts.remote_hosts import is_remote
from midstream.hosts.rpc.report_types import Committed, CopyLine, CopyProblem, PartialObject, Present, Ready, Reused
from midstream.printable import printable
from midstream.transfer.copy_problems import problem_error
from midstream.transfer.copy_settings import AUTO, RELAY, CopySettings, settings_of_hosts
from midstream.transfer.direct_streams import DirectStreams, direct_streams
from midstream.transfer.early_stream import EARLY_STREAMS, EarlyStream
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import ChangedOnWayError, TransferError
from midstream.transfer.link import HIGH_LATENCY, Link, probe
from midstream.transfer.partial_objects import apart, gaps
from midstream.transfer.progress import Meter
from midstream.transfer.report import CopyReport, Progress
from midstream.transfer.route import StreamRoute
from midstream.transfer.send_queue import MIN_STREAM_BYTES, SendQueue, ranges, split
from midstream.transfer.stream import Events, Stream
from midstream.transfer.stream_pool import SMALL_COPY, StreamPool
from midstream.transfer.target_session import TargetSession, new_generation
from midstream.transfer.tree_contents import HASH_TIMEOUT, TreeContents, malformed, read_contents
from midstream.transfer.waiting_interpreters import waiting_interpreters
from midstream_core import records
from midstream_host.allowlist import CHECKPOINT
from midstream_host.copy_items import CopyItem, CopyObject
from midstream_host.verify import objects as remote_objects

Chunk = tuple[int, int, str]  # offset, length, SHA-256
REPEATS = 2  # of a copy in which bytes changed on their way


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
    """Copy the objects that the source's manifest names.

    The manifest arrives byte for byte, last, and only if every object is verified at the target. After an error the
    target has no new manifest, and the same call sends only what is missing.

    Args:
        source: Endpoint that has the tree. Either endpoint, or both, may be in a bucket.
        target: Endpoint that receives it.
        manifest_name: Name of the manifest in both directories.
        progress: Called with the progress, from this thread.
        cancel: Ends the copy when it is set.
        settings: By default those of the fleet file.
        kind: What the tree has to be (`midstream_host.allowlist`). A manifest that names anything else is
            rejected.

    Raises:
        TransferError: An object is missing or corrupt at the source, or the target has too little space.
        Cancelled: ``cancel`` was set.
        ConnectionLostError: A connection broke.
    """
    target.prepare()
    with waiting_interpreters(target.host) as interpreters:
        contents = read_contents(source, manifest_name, kind)
        there = replace(target, interpreters=interpreters)
        return copy_contents(
            contents, there, manifest=manifest_name, progress=progress, cancel=cancel, settings=settings
        )


def copy_contents(
    contents: TreeContents,
    target: Endpoint,
    *,
    manifest: str = records.MANIFEST,
    progress: Callable[[Progress], None] | None = None,
    cancel: Event | None = None,
    settings: CopySettings | None = None,
) -> CopyReport:
    """Copy a tree whose manifest was read.

    Errors as those of `copy_tree`.

    Args:
        contents: The tree.
        target: Endpoint that receives it.
        manifest: Name of the manifest at the target.
        progress: Called with the progress, from this thread.
        cancel: Ends the copy when it is set.
        settings: By default those of the fleet file.
    """
    started = time.monotonic()
    target.prepare()
    by_source = contents.by_source()
    settings = settings or settings_of_hosts(contents.first.host, target.host)

    def copy() -> CopyReport:
        return _TreeCopy(contents, target, manifest, progress, cancel, settings, by_source, started).run()

    for _ in range(REPEATS):
        with suppress(ChangedOnWayError):  # what has arrived stays; the object is read again
            return copy()
    return copy()


@dataclass
class _Survey:
    """Objects of the target: paths, and chunks of partial ones.

    A chunk is ``[offset, length, sha256]``.
    """

    present: list[str] = field(default_factory=list[str])
    held: list[str] = field(default_factory=list[str])  # of other trees of the target
    parts: dict[str, list[Chunk]] = field(default_factory=dict[str, list[Chunk]])
    absent: set[str] = field(default_factory=set[str])


@dataclass
class _TreeCopy:
    contents: TreeContents
    target: Endpoint
    manifest: str
    progress: Callable[[Progress], None] | None
    cancel: Event | None
    settings: CopySettings
    by_source: list[tuple[Endpoint, list[CopyObject]]]
    started: float

    @property
    def objects(self) -> list[CopyObject]:
        return [entry for _, entries in self.by_source for entry in entries]

    def run(self) -> CopyReport:
        objects = self.objects
        meter = Meter(sum(entry["size"] for entry in objects), len(objects), self.progress)
        meter.publish()
        events: Events = Queue()
        generation = new_generation()
        with (
            _probed_links(self.by_source, self.target, self.settings) as links,
            self._direct_streams(links, generation) as direct,
            self._early_streams(links, direct, generation, events) as early,
            TargetSession(
                self.target,
                objects,
                events,
                manifest=self.manifest,
                text=self.contents.text,
                generation=generation,
                kind=self.contents.kind,
            ) as session,
        ):
            on_problem = partial(problem_error, self.target, self.contents.first, meter)
            survey = self._survey(session, meter, objects, on_problem)
            routes, queues = self._plan(session, survey, links, direct, meter)
            if len(queues) == 1:
                queues[0].early = early
            pool = StreamPool(
                session,
                events,
                queues,
                meter,
                explain=self._explain,
                bandwidth_limit=self.settings.bandwidth_limit,
                cancel=self.cancel,
            )
            if self.target.interpreters is not None:
                self.target.interpreters.close()  # the programs that needed one have begun
            # A bucket's program commits what is complete by then, and does not wait for the objects that it assembles.
            pool.run(set(survey.absent), landed=None if self.target.in_bucket else session.commit)
            if self.target.in_bucket:
                session.commit()
            session.wait_for(Committed, on_problem=on_problem, cancel=self.cancel)
        return CopyReport(
            objects=len(objects),
            objects_sent=len(survey.absent),
            bytes=meter.bytes_total,
            bytes_sent=pool.bytes_sent,
            bytes_on_link=pool.bytes_on_link,
            seconds=time.monotonic() - self.started,
            skipped=tuple(sorted([*survey.present, *survey.held])),
            linked=tuple(sorted(survey.held)),
            routes=tuple(routes),
        )

    @contextmanager
    def _direct_streams(
        self, links: Mapping[str, Future[Link]], generation: str
    ) -> Generator[Mapping[str, DirectStreams]]:
        """Begin to connect this machine with the hosts at the other end."""
        streams: dict[str, DirectStreams] = {}
        try:
            for source, entries in self.by_source:
                total = sum(entry["size"] for entry in entries)
                ends, link = (source, self.target), links[str(source)]
                source_streams = direct_streams(*ends, self.settings, self.contents.kind, generation, total, link)
                if source_streams is not None:
                    streams[str(source)] = source_streams
            yield streams
        finally:
            for source_streams in streams.values():
                source_streams.close()

    @contextmanager
    def _early_streams(
        self,
        links: Mapping[str, Future[Link]],
        direct: Mapping[str, DirectStreams],
        generation: str,
        events: Events,
    ) -> Generator[list[EarlyStream], None, None]:
        """Open the first streams of a copy with one source while the target is surveyed."""
        if len(self.by_source) != 1:
            yield []
            return
        [(source, entries)] = self.by_source
        both_remote = all(is_remote(endpoint.host) for endpoint in (source, self.target))
        total = sum(entry["size"] for entry in entries)

        def link(number: int) -> Link:
            # The first stream needs the probe's result only between two SSH hosts. A probe that is late means latency.
            if both_remote or self.target.in_bucket or source.in_bucket:
                return links[str(source)].result()
            try:
                return links[str(source)].result(timeout=2 * HIGH_LATENCY if number else 0.0)
            except TimeoutError:
                return Link("ssh", 2 * HIGH_LATENCY)

        def begin(number: int) -> Stream | None:
            streams = direct.get(str(source))
            route = StreamRoute(source, self.target, link(number), self.settings, self.contents.kind, streams)
            if number and not (route.favors_streams and number < min(route.streams, total // MIN_STREAM_BYTES)):
                return None
            return route.open(generation, events, small=total < SMALL_COPY)

        count = EARLY_STREAMS if total >= EARLY_STREAMS * MIN_STREAM_BYTES else 1
        early = [EarlyStream(partial(begin, number)) for number in range(count)]
        try:
            yield early
        finally:
            for stream in early:
                stream.close()

    def _survey(
        self,
        session: TargetSession,
        meter: Meter,
        objects: list[CopyObject],
        on_problem: Callable[[CopyProblem], MidstreamError],
    ) -> _Survey:
        """Read the reports of what the target has."""
        sizes = {entry["path"]: entry["size"] for entry in objects}
        survey = _Survey()

        def on_report(report: CopyLine) -> None:
            if isinstance(report, (Present, Reused)):
                named = [path for path in report.objects if path in sizes]
                (survey.present if isinstance(report, Present) else survey.held).extend(named)
                for path in named:
                    meter.present(path, sizes[path])
            elif isinstance(report, PartialObject):
                survey.parts[report.path] = report.chunks

        session.wait_for(Ready, on_problem=on_problem, on_report=on_report, cancel=self.cancel)
        complete = {*survey.present, *survey.held}
        survey.absent = {entry["path"] for entry in objects if entry["path"] not in complete}
        return survey

    def _plan(
        self,
        session: TargetSession,
        survey: _Survey,
        links: Mapping[str, Future[Link]],
        direct: Mapping[str, DirectStreams],
        meter: Meter,
    ) -> tuple[list[str], list[SendQueue]]:
        """Return the route of each source, in words, and its items.

        Chunks that the target has are left out.
        """
        routes: list[str] = []
        queues: list[SendQueue] = []
        for source, entries in self.by_source:
            absent = [entry for entry in entries if entry["path"] in survey.absent]
            if not absent:
                continue
            link = links[str(source)].result()
            source_streams = direct.get(str(source))
            route = StreamRoute(source, self.target, link, self.settings, self.contents.kind, source_streams)
            partial_entries = [entry for entry in absent if survey.parts.get(entry["path"])]
            partial_paths = {entry["path"] for entry in partial_entries}
            items: list[CopyItem] = []
            for entry, matching in self._matching_chunks(source, partial_entries, survey.parts):
                chunks = apart(entry["size"], matching)
                session.landed([[entry["path"], offset, length] for offset, length in chunks])
                meter.landed_before(sum(length for _, length in chunks))
                items += ranges(entry, gaps(entry["size"], chunks))
            # In a bucket one stream has to bring all parts of an object.
            streams = 1 if self.target.in_bucket else route.streams
            items += split([entry for entry in absent if entry["path"] not in partial_paths], streams)
            taken = source_streams.link(link) if source_streams is not None else link
            routes.append(taken.text(source.host.name, self.target.host.name))
            queues.append(SendQueue(route, deque(items)))
        return routes, queues

    def _matching_chunks(
        self, source: Endpoint, entries: list[CopyObject], chunks: Mapping[str, Sequence[Chunk]]
    ) -> Iterator[tuple[CopyObject, list[tuple[int, int]]]]:
        """Yield partial objects with (offset, length) of chunks with the source's hashes."""
        requested = [
            [entry["path"], offset, length] for entry in entries for offset, length, _ in chunks[entry["path"]]
        ]
        if not requested:
            return
        answer = source.host.call(remote_objects.digests, timeout=HASH_TIMEOUT)(
            directory=source.directory, ranges=requested
        )
        if len(answer) != len(requested):
            raise malformed(source, "verify.objects.digests")
        digests = iter(answer)
        for entry in entries:
            matching = [
                (offset, length)
                for (offset, length, own_digest), digest in zip(chunks[entry["path"]], digests, strict=False)
                if own_digest == digest
            ]
            yield entry, matching

    def _explain(self, path: str, what: str) -> MidstreamError:
        sources = ((source, entry) for source, entries in self.by_source for entry in entries if entry["path"] == path)
        source, entry = next(sources, (None, None))
        if source is None or entry is None:
            return TransferError(f"{self.target}: an object that was not sent is wrong there", "run it again")
        wrong = source.host.call(remote_objects.check, timeout=HASH_TIMEOUT)(directory=source.directory, entry=entry)
        if wrong is not None:
            return TransferError(
                f"object {printable(path)} of {source} is corrupt: {wrong}",
                "--checkpoint STEP takes another one; --checkpoints RUN lists them",
                path,
            )
        return ChangedOnWayError(
            f"object {printable(path)} changed on its way from {source} to {self.target}: {what}", "run it again", path
        )


@contextmanager
def _probed_links(
    by_source: Sequence[tuple[Endpoint, list[CopyObject]]], target: Endpoint, settings: CopySettings
) -> Generator[Mapping[str, Future[Link]], None, None]:
    """Probe the links from the sources while the target is surveyed."""
    with ThreadPoolExecutor(max(1, len(by_source))) as pool:
        probes: dict[str, Future[Link]] = {}
        for source, entries in by_source:
            both_remote = is_remote(source.host) and is_remote(target.host)
            small = sum(entry["size"] for entry in entries) < MIN_STREAM_BYTES and settings.route == AUTO
            # Too few bytes for a probe; and `DirectStreams` finds out whether this machine can connect to a host.
            probed = replace(settings, route=RELAY) if small or not both_remote else settings
            probes[str(source)] = pool.submit(probe, source.host, target.host, probed)
        yield probes
