"""Read a checkpoint on its host, or in a bucket from this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.bundled_files import engine_packages_hint
from midstream.errors import MidstreamError
from midstream.operations.checkpoint_argument import resolve_checkpoint
from midstream_core import records
from midstream_core.object_store.urls import in_bucket
from midstream_host.verify import tree

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool
    from midstream.hosts.rpc.report_types import Examining
    from midstream.stores.bucket_access import Access
    from midstream.watch.snapshot import RunView


@dataclass(frozen=True)
class ArrayStatistics:
    """Statistics of a decoded array."""

    norm: float  # square root of the sum of squares of its finite elements
    not_finite: int  # elements that are NaN or infinite


@dataclass(frozen=True)
class CheckpointLocation:
    """A checkpoint: a directory of a host, or a bucket prefix read from here."""

    host: Host
    directory: str  # or a URL
    access: Access | None = None  # of the bucket

    @property
    def in_bucket(self) -> bool:
        return in_bucket(self.directory)

    def __str__(self) -> str:
        return self.directory if self.in_bucket else f"{self.host.name}:{self.directory}"


@dataclass(frozen=True)
class Examination:
    """Result of reading all objects of a checkpoint."""

    objects: int
    bytes: int
    recorded: str  # root digest, as the manifest has it
    recomputed: str | None  # None if an object is damaged
    problems: list[tuple[str, str]]  # (object, problem)
    contents: dict[str, ArrayStatistics]  # array -> statistics, if the arrays were decoded
    decoder: str  # program that decoded the arrays

    @property
    def ok(self) -> bool:
        return not self.problems and (self.recomputed or "") == self.recorded


def find(fleet: Fleet | None, hosts: HostPool, text: str) -> CheckpointLocation:
    """Return the location of a checkpoint argument, which may also be a URL."""
    from midstream.fleet.fleet import LocalHostConfig
    from midstream.hosts.local_host import LocalHost
    from midstream.stores.bucket_access import access_for

    if in_bucket(text):
        host, directory = LocalHost("here", LocalHostConfig()), text.rstrip("/")
    else:
        host, directory = resolve_checkpoint(fleet, hosts, text)
    return CheckpointLocation(host, directory, access_for(fleet, directory) if in_bucket(directory) else None)


def location_of(hosts: HostPool, run: RunView, checkpoint: str) -> CheckpointLocation:
    """Return the location of a checkpoint of a run, in its bucket or on its host."""
    from midstream.stores.bucket_access import access_for

    host = hosts.get(run.host)
    directory = records.RunPaths(host.root, run.run_id, run.store).checkpoint(checkpoint)
    return CheckpointLocation(host, directory, access_for(hosts.fleet, directory) if run.store else None)


def read_manifest(location: CheckpointLocation) -> records.Manifest:
    """Read the manifest of a checkpoint.

    Raises:
        MidstreamError: It is missing or damaged.
    """
    if location.in_bucket:
        from midstream.stores.bucket_checkpoint import BucketCheckpoint

        return BucketCheckpoint(location.directory, location.access).manifest()
    location.host.connect()
    answer = location.host.call(tree.manifest_value)(directory=location.directory, manifest=records.MANIFEST)
    try:
        return records.Manifest.from_json(answer, str(location))
    except records.RecordError as error:
        raise MidstreamError(str(error), f"midstream --verify {location} names the damage") from None


def verify(location: CheckpointLocation, *, deep: bool = False) -> Examination:
    """Hash every object, which needs Python alone; with ``deep`` decode every array."""
    if deep or location.in_bucket:
        return examine(location, deep=deep)
    from midstream.transfer.verify_tree import verify_objects

    report = verify_objects(location.host, location.directory)
    recorded = (report.root_digest if report.ok else "") or ""
    return Examination(report.objects, report.bytes, recorded, report.root_digest, list(report.problems), {}, "")


def problems_of(examination: Examination) -> list[tuple[str, str]]:
    """Return (object, problem) of each; a wrong root digest is the manifest's."""
    if examination.problems or examination.ok:
        return examination.problems
    return [(records.MANIFEST, f"the root digest is {examination.recomputed}, recorded is {examination.recorded}")]


def examine(location: CheckpointLocation, *, deep: bool) -> Examination:
    """Hash every object; with ``deep`` also decode every array.

    The engine decodes them if the host has one installed.
    """
    from midstream.hosts.rpc.remote_program import run_program
    from midstream.hosts.rpc.report_types import EXAMINE

    location.host.connect()
    if location.in_bucket and not deep:
        from midstream.stores.bucket_checkpoint import BucketCheckpoint

        return _collect([BucketCheckpoint(location.directory, location.access).examine()], location)
    examine_there = run_program(location.host, EXAMINE)
    with examine_there(directory=location.directory, root=location.host.root, deep=deep) as examining:
        return _collect(examining, location)


def _collect(reports: Iterable[Examining], location: CheckpointLocation) -> Examination:
    from midstream.hosts.rpc.report_types import ArrayContent, ExaminedTree, Problem

    contents: dict[str, ArrayStatistics] = {}
    for report in reports:
        if isinstance(report, Problem):
            hint = engine_packages_hint() if report.kind == "engine" else ""
            raise MidstreamError(f"{location}: {report.message}", hint)
        if isinstance(report, ExaminedTree):
            problems = sorted(report.problems)
            return Examination(
                report.objects, report.bytes, report.recorded, report.recomputed, problems, contents, report.by
            )
        if isinstance(report, ArrayContent) and report.norm is not None:
            contents[report.name] = ArrayStatistics(report.norm, report.not_finite)
    raise MidstreamError(f"{location}: the examination ended without a result")
