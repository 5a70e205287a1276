"""Read a checkpoint where its data is: on its host, or, in a bucket, from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from midstream.errors import MidstreamError
from midstream.headless.array_tree import Contents
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import Hosts
    from midstream.stores.bucket_access import Access


@dataclass(frozen=True)
class Place:
    """A checkpoint: a directory of a host, or a prefix in a bucket, which this machine reads."""

    host: Host
    directory: str  # or gs://bucket/prefix
    access: Access | None = None  # of the bucket

    @property
    def in_bucket(self) -> bool:
        return self.directory.startswith("gs://")

    def __str__(self) -> str:
        return self.directory if self.in_bucket else f"{self.host.name}:{self.directory}"


@dataclass(frozen=True)
class Examined:
    """What reading all of a checkpoint told."""

    objects: int
    bytes: int
    recorded: str  # root digest, as the manifest has it
    recomputed: str | None  # None where an object is damaged
    problems: list[tuple[str, str]]  # object, what is wrong with it
    contents: dict[str, Contents]  # of each array, where the arrays were decoded
    by: str  # who decoded them

    @property
    def ok(self) -> bool:
        return not self.problems and (self.recomputed or "") == self.recorded


def find(fleet: Fleet | None, hosts: Hosts, text: str) -> Place:
    """What a person means by a checkpoint: see :mod:`midstream.headless.checkpoint_argument`."""
    from midstream.fleet.fleet import LocalHost
    from midstream.headless.checkpoint_argument import place
    from midstream.hosts.local_host import LocalMachine
    from midstream.stores.bucket_access import access_for

    if text.startswith("gs://"):
        host, directory = LocalMachine("here", LocalHost()), text.rstrip("/")
    else:
        host, directory = place(fleet, hosts, text)
    return Place(host, directory, access_for(fleet, directory) if directory.startswith("gs://") else None)


def read_manifest(place: Place) -> records.Manifest:
    """The manifest alone. MidstreamError where there is none."""
    if place.in_bucket:
        from midstream.stores.bucket import Bucket

        return Bucket(place.directory, place.access).manifest()
    place.host.connect()
    answer = place.host.call("verify.tree.manifest_value", directory=place.directory, manifest=records.MANIFEST)
    try:
        return records.Manifest.from_json(answer, str(place))
    except records.RecordError as error:
        raise MidstreamError(str(error), "midstream --verify looks at it closely") from None


def examine(place: Place, *, deep: bool) -> Examined:
    """Read every object; ``deep`` also decodes every array, by the engine where one is installed beside the data."""
    from midstream.hosts.rpc.remote_program import run_program

    place.host.connect()
    if place.in_bucket and not deep:
        from midstream.stores.bucket import Bucket

        return _collect(Bucket(place.directory, place.access).examine(), place)
    arguments = {"directory": place.directory, "root": place.host.root, "deep": deep}
    return _collect(run_program(place.host, "verify.array_check.examine", arguments), place)


def _collect(reports: Any, place: Place) -> Examined:
    contents: dict[str, Contents] = {}
    for report in reports:
        if report["event"] == "problem":
            hint = "pip install 'midstream[engine]'" if report.get("kind") == "engine" else ""
            raise MidstreamError(f"{place}: {report['message']}", hint)
        if report["event"] == "array" and "norm" in report:
            contents[report["name"]] = Contents(report["norm"], report["not_finite"])
        elif report["event"] == "verified":
            problems = sorted((path, what) for path, what in report["problems"])
            return Examined(
                report["objects"], report["bytes"], report["recorded"], report["recomputed"], problems, contents,
                report.get("by", ""),
            )  # fmt: skip
    raise MidstreamError(f"{place}: examining it ended without a verdict")
