"""Where a run keeps its checkpoints on one side of a move: on its host, beside all else of the run, or in a bucket.

Hosts that read and write ``gs://`` themselves need no copy on their disks: what is moved there is brought to the
bucket, and between two sides with the same bucket nothing is copied at all. Fence, lineage and metrics stay on the
hosts; the engine keeps a fence beside the checkpoints too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.migrate import host_files
from midstream.remote.runs.run_state import PARTIAL
from midstream.stores.bucket import Bucket
from midstream.stores.bucket_access import Access, access_for
from midstream.stores.bucket_checkpoints import BucketRun
from midstream.stores.bucket_host import BucketHost
from midstream.transfer import Endpoint, VerifyReport, bucket_endpoint, probe, verify_objects
from midstream_engine import records

Point = dict[str, Any]


class CheckpointStore(Protocol):
    """The checkpoints of a run. A *point* has the fields of `runs.run_state.checkpoints`."""

    @property
    def store(self) -> str:
        """``gs://bucket/prefix``; empty on a disk."""
        ...

    def endpoint(self, name: str, beside: Host | None = None, python: str = "") -> Endpoint:
        """Where a checkpoint lies. The bytes of a bucket pass through ``beside``, the host at the other end of a copy,
        where that has an identity for it and ``python`` a client; else through this machine."""
        ...

    def points(self, described: Mapping[str, Any]) -> list[Point]:
        """By step, then attempt, of a run that was just described (`runs.run_state.describe`)."""
        ...

    def newest_state(self) -> dict[str, Any] | None:
        """``{name, manifest, train}`` of the newest complete, accepted one; None without one."""
        ...

    def has(self, name: str) -> bool:
        """Whether a complete one of that name is there."""
        ...

    def manifest(self, name: str) -> records.Manifest: ...

    def data_digests(self, name: str) -> tuple[str, ...]:
        """See `readers.data_digests`."""
        ...

    def verify(self, name: str) -> VerifyReport:
        """Every object read back, the root digest computed from them."""
        ...

    def pin(self, migration: str, name: str, expires: float) -> None:
        """Keep retention away from a checkpoint until ``expires`` (UTC seconds)."""
        ...

    def pin_newest(self, migration: str, expires: float, name: str = "") -> Point | None:
        """Pin the newest complete, accepted one, or that of a name; None without one."""
        ...

    def unpin(self, migration: str) -> None: ...


def checkpoint_store_of(fleet: Fleet, host: Host, run_id: str, store: str) -> CheckpointStore:
    """The shelf of a side whose first host is ``host``."""
    return BucketStore(host, run_id, store, access_for(fleet, store)) if store else DirectoryStore(host, run_id)


@dataclass(frozen=True)
class DirectoryStore:
    """On ``host``, which has to be connected."""

    host: Host
    run_id: str
    store: str = ""

    def _path(self, name: str) -> str:
        return records.RunPaths(self.host.root, self.run_id).checkpoint(name)

    def endpoint(self, name: str, beside: Host | None = None, python: str = "") -> Endpoint:
        return Endpoint(self.host, self._path(name))

    def points(self, described: Mapping[str, Any]) -> list[Point]:
        return list(described["checkpoints"])

    def newest_state(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._call("runs.standby_state.newest_state")
        return found

    def has(self, name: str) -> bool:
        return host_files.has_manifest(self.host, self._path(name))

    def manifest(self, name: str) -> records.Manifest:
        return host_files.read_manifest(self.host, self.run_id, name)

    def data_digests(self, name: str) -> tuple[str, ...]:
        return host_files.data_digests(self.host, self.run_id, name)

    def verify(self, name: str) -> VerifyReport:
        return verify_objects(self.host, self._path(name))

    def pin(self, migration: str, name: str, expires: float) -> None:
        self._call("runs.run_state.pin", migration=migration, checkpoint=name, expires=expires)

    def pin_newest(self, migration: str, expires: float, name: str = "") -> Point | None:
        found: Point | None = self._call(
            "runs.standby_state.pin_newest", migration=migration, expires=expires, name=name
        )
        return found

    def unpin(self, migration: str) -> None:
        self._call("runs.run_state.unpin", migration=migration)

    def _call(self, function: str, **arguments: Any) -> Any:
        return self.host.call(function, root=self.host.root, run_id=self.run_id, **arguments)


@dataclass(frozen=True)
class BucketStore:
    """Under ``store``, asked for from this machine with ``access``; the fence is that of ``host``, or a newer one that
    lies in the bucket."""

    host: Host
    run_id: str
    store: str
    access: Access
    _ways: dict[str, BucketHost | None] = field(default_factory=dict, repr=False, compare=False)

    def _url(self, name: str) -> str:
        return records.RunPaths("", self.run_id, self.store).checkpoint(name)

    def _run(self) -> BucketRun:
        return BucketRun(self.store, self.run_id, self.access)

    def endpoint(self, name: str, beside: Host | None = None, python: str = "") -> Endpoint:
        own = self._own_way(beside, python) if beside is not None and python else None
        return Endpoint(own, self._url(name)) if own is not None else bucket_endpoint(self._url(name), self.access)

    def _own_way(self, beside: Host, python: str) -> BucketHost | None:
        """The bucket's client on that host, where it gets in. Credentials of this machine do not travel."""
        if self.access.credentials or isinstance(beside, BucketHost):
            return None
        if beside.name not in self._ways:
            there = BucketHost(self.store, self.access, via=beside, python=python)
            self._ways[beside.name] = None if there.why_not(self.store)[0] else there
        return self._ways[beside.name]

    def points(self, described: Mapping[str, Any]) -> list[Point]:
        there = self._run()
        known = described["fence"]
        local = None if known is None else records.Fence.from_json(known, f"{self.host.name}: fence.json")
        fence = max(filter(None, (local, there.fence())), key=lambda fence: fence.epoch, default=None)
        found = [{**PARTIAL, "pinned": False, **point} for point in there.checkpoints()]
        for point in found:
            accepted = fence is None or fence.accepts(point["epoch"], point["step"])
            point["accepted"] = bool(point["complete"] and accepted)
        return found

    def newest_state(self) -> dict[str, Any] | None:
        while True:
            point = self._newest("")
            if point is None:
                return None
            name = point["name"]
            try:
                manifest = Bucket(self._url(name), self.access).manifest().to_json()
                return {"name": name, "manifest": manifest, "train": self._train(name)}
            except MidstreamError:
                if self.has(name):
                    raise
                # Retention has removed it since it was listed.

    def _newest(self, name: str) -> Point | None:
        described = self.host.call("runs.run_state.describe", root=self.host.root, run_id=self.run_id)
        usable = [point for point in self.points(described) if point["complete"] and point["accepted"]]
        usable = [point for point in usable if name in ("", point["name"])]
        return max(usable, key=lambda point: (point["step"], point["attempt"])) if usable else None

    def _train(self, name: str) -> dict[str, Any]:
        data = Bucket(self._url(name), self.access).get(records.TRAIN)
        if data is None:
            raise MidstreamError(f"{self._url(name)}: there is no {records.TRAIN}", "midstream --verify names the rest")
        train = records.parse_json(data, f"{self._url(name)}/{records.TRAIN}")
        if not isinstance(train, dict):
            raise MidstreamError(f"{self._url(name)}: {records.TRAIN} is not an object", "midstream --verify reads it")
        return train

    def has(self, name: str) -> bool:
        return Bucket(self._url(name), self.access).get(records.MANIFEST) is not None

    def manifest(self, name: str) -> records.Manifest:
        return Bucket(self._url(name), self.access).manifest()

    def data_digests(self, name: str) -> tuple[str, ...]:
        return tuple(records.data_digests(self._train(name)))

    def verify(self, name: str) -> VerifyReport:
        report = next(iter(Bucket(self._url(name), self.access).examine()))
        problems = tuple((path, what) for path, what in report["problems"])
        same = report["recomputed"] == report["recorded"]
        return VerifyReport(
            ok=same and not problems,
            problems=problems,
            objects=report["objects"],
            bytes=report["bytes"],
            extra=tuple(report["extra"]),
            root_digest=report["recomputed"],
            root_digest_ok=same,
        )

    def pin(self, migration: str, name: str, expires: float) -> None:
        self._run().pin(migration, name, expires)

    def pin_newest(self, migration: str, expires: float, name: str = "") -> Point | None:
        while True:
            point = self._newest(name)
            if point is None:
                return None
            self.pin(migration, point["name"], expires)
            if self.has(point["name"]):
                return point

    def unpin(self, migration: str) -> None:
        self._run().unpin(migration)


def same_bucket(here: CheckpointStore, there: CheckpointStore) -> bool:
    """Whether what lies on the one lies on the other."""
    return bool(here.store) and here.store == there.store


def way(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host) -> str:
    """The way that a checkpoint's bytes will take, for a plan. HostError where there is none."""
    if same_bucket(here, there):
        return f"none: both sides read {here.store}"
    ends = here.endpoint("x", target).host, there.endpoint("x", source).host
    return probe(*ends).text(ends[0].name, ends[1].name)


def in_the_way(host: Host, run_id: str, shelf: CheckpointStore, epoch: int) -> tuple[str, str]:
    """Why a run that is at ``epoch`` cannot keep its checkpoints on a target's shelf, and what mends it; empty where it
    can. What is not there any more is no reason."""
    paths = records.RunPaths(host.root, run_id)
    known = host.call("verify.tree.store_of", root=host.root, run_id=run_id)
    if known is not None and known.rstrip("/") != shelf.store:
        wanted = shelf.store or "its own disk"
        return (
            f"{run_id} was on {host.name} before, with its checkpoints in {known}, and would have them on {wanted} now",
            f"store: {known} for {host.name} in the fleet file, or remove {paths.store_file} there",
        )
    if not isinstance(shelf, BucketStore):
        return "", ""
    if known is None and host.call("runs.run_state.describe", root=host.root, run_id=run_id)["checkpoints"]:
        return (
            f"{run_id} was on {host.name} before, with its checkpoints in {paths.checkpoints}",
            f"take store: out for {host.name}, or remove that directory there, if the source has all that is needed",
        )
    why, hint = BucketHost(shelf.store, shelf.access).why_not(shelf.store)
    if why:
        return why, hint
    fence = BucketRun(shelf.store, run_id, shelf.access).fence()
    if fence is not None and fence.epoch > epoch:
        return (
            f"{shelf.store} has a run {run_id} of its own: held by {fence.owner} under epoch {fence.epoch}",
            "another prefix, or remove that run there",
        )
    return "", ""
