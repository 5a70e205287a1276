"""A run's checkpoint store on source or target: a host's directory, or a bucket.

Hosts that read and write the bucket themselves need no copy on their disks: a checkpoint is copied to the bucket, and
between two groups with the same bucket nothing is copied. Fence, lineage and metrics stay on the hosts; the engine
writes a fence next to the checkpoints too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from midstream.errors import MidstreamError
from midstream.fleet.fleet import Fleet
from midstream.hosts.host import Host
from midstream.migrate import host_files
from midstream.ownership.owner_judge import HostCopy, OwnerJudge
from midstream.stores.bucket_acceptance import acceptance, claim, owner_line
from midstream.stores.bucket_access import Access, access_for
from midstream.stores.bucket_checkpoint import BucketCheckpoint
from midstream.stores.bucket_host import BucketHost
from midstream.stores.bucket_run import BucketRun
from midstream.transfer.endpoint import Endpoint, bucket_endpoint
from midstream.transfer.link import probe
from midstream.transfer.report import VerifyReport
from midstream.transfer.verify_tree import verify_objects
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint, newest_checkpoint
from midstream_host.runs import checkpoint_pins, run_state, standby_state
from midstream_host.runs.run_state import RunDescription
from midstream_host.verify import tree

P = ParamSpec("P")
R = TypeVar("R")


class CheckpointStore(Protocol):
    """The checkpoints of a run."""

    @property
    def store(self) -> str:
        """URL of a prefix in a bucket; empty on a disk."""
        ...

    def endpoint(self, name: str, via: Host | None = None, python: str = "") -> Endpoint:
        """Return the endpoint of a checkpoint for a copy.

        The bytes of a bucket pass through ``via``, the host at the other end of the copy, if that has an identity for
        the bucket and ``python`` a client; else through this machine.
        """
        ...

    def checkpoints(self, described: RunDescription) -> list[ListedCheckpoint]:
        """Return a described run's checkpoints, by step and attempt.

        ``described`` is the result of `run_state.describe`.
        """
        ...

    def newest_state(self) -> standby_state.NewestState | None:
        """Return the newest complete, accepted checkpoint; None without one."""
        ...

    def has(self, name: str) -> bool:
        """Return whether it has a complete checkpoint of that name."""
        ...

    def manifest(self, name: str) -> records.Manifest: ...

    def data_digests(self, name: str) -> tuple[str, ...]:
        """Return the token caches of a checkpoint, see `host_files.data_digests`."""
        ...

    def verify(self, name: str) -> VerifyReport:
        """Read every object back, and compute the root digest from them."""
        ...

    def pin(self, migration: str, name: str, expires: float) -> None:
        """Protect a checkpoint from retention until ``expires`` (UTC seconds)."""
        ...

    def pin_newest(self, migration: str, expires: float, name: str = "") -> ListedCheckpoint | None:
        """Pin and return the newest complete, accepted one, or ``name``; None without one."""
        ...

    def unpin(self, migration: str) -> None: ...


def checkpoint_store_of(fleet: Fleet, host: Host, run_id: str, store: str) -> CheckpointStore:
    """Return the checkpoint store of a group whose first host is ``host``."""
    if not store:
        return DirectoryStore(host, run_id)
    return BucketStore(host, run_id, store, access_for(fleet, store), OwnerJudge(fleet))


@dataclass(frozen=True)
class DirectoryStore:
    """Checkpoints in the run directory of ``host``, which has to be connected."""

    host: Host
    run_id: str
    store: str = ""

    def _path(self, name: str) -> str:
        return records.RunPaths(self.host.root, self.run_id).checkpoint(name)

    def endpoint(self, name: str, via: Host | None = None, python: str = "") -> Endpoint:
        del via, python  # parameters of the interface that a directory does not need
        return Endpoint(self.host, self._path(name))

    def checkpoints(self, described: RunDescription) -> list[ListedCheckpoint]:
        return list(described.checkpoints)

    def newest_state(self) -> standby_state.NewestState | None:
        return self._call(standby_state.newest_state)()

    def has(self, name: str) -> bool:
        return host_files.has_manifest(self.host, self._path(name))

    def manifest(self, name: str) -> records.Manifest:
        return host_files.read_manifest(self.host, self.run_id, name)

    def data_digests(self, name: str) -> tuple[str, ...]:
        return host_files.data_digests(self.host, self.run_id, name)

    def verify(self, name: str) -> VerifyReport:
        return verify_objects(self.host, self._path(name))

    def pin(self, migration: str, name: str, expires: float) -> None:
        self._call(checkpoint_pins.pin)(migration=migration, checkpoint=name, expires=expires)

    def pin_newest(self, migration: str, expires: float, name: str = "") -> ListedCheckpoint | None:
        return self._call(standby_state.pin_newest)(migration=migration, expires=expires, name=name)

    def unpin(self, migration: str) -> None:
        self._call(checkpoint_pins.unpin)(migration=migration)

    def _call(self, function: Callable[Concatenate[str, str, P], R]) -> Callable[P, R]:
        def call(*positional: P.args, **named: P.kwargs) -> R:
            return self.host.call(function)(self.host.root, self.run_id, *positional, **named)

        return call


@dataclass(frozen=True)
class BucketStore:
    """Checkpoints in bucket ``store``, read from this machine with ``access``.

    `bucket_acceptance` says which of them count. ``owners`` has the signed records of the run.
    """

    host: Host
    run_id: str
    store: str
    access: Access
    owners: OwnerJudge | None = None
    _clients: dict[str, BucketHost | None] = field(
        default_factory=dict[str, BucketHost | None], repr=False, compare=False
    )

    def _url(self, name: str) -> str:
        return records.RunPaths("", self.run_id, self.store).checkpoint(name)

    def _checkpoint(self, name: str) -> BucketCheckpoint:
        return BucketCheckpoint(self._url(name), self.access)

    def _run(self) -> BucketRun:
        return BucketRun(self.store, self.run_id, self.access)

    def endpoint(self, name: str, via: Host | None = None, python: str = "") -> Endpoint:
        own = self._client_on(via, python) if via is not None and python else None
        return Endpoint(own, self._url(name)) if own is not None else bucket_endpoint(self._url(name), self.access)

    def _client_on(self, via: Host, python: str) -> BucketHost | None:
        """Return the bucket's client on host ``via``; None if it has no access.

        Credentials of this machine are never sent to a host, nor is a profile of it.
        """
        if self.access.credentials or self.access.profile or isinstance(via, BucketHost):
            return None
        if via.name not in self._clients:
            there = BucketHost(self.store, self.access, via=via, python=python)
            self._clients[via.name] = None if there.access_problem(self.store)[0] else there
        return self._clients[via.name]

    def checkpoints(self, described: RunDescription) -> list[ListedCheckpoint]:
        return self.examined(described)[0]

    def examined(self, described: RunDescription) -> tuple[list[ListedCheckpoint], str]:
        """Return a described run's checkpoints, and the bucket's claim.

        The claim is what the bucket shows beyond the proven epoch, in one line; empty where it shows no more.
        """
        there, head = self._run(), None
        if self.owners is not None:
            shown = HostCopy(self.host.name, described.fence, described.ownership)
            head = self.owners.judge(self.run_id, [shown]).head
        fence = there.fence()
        accepted = acceptance(described.fence, fence, head.epoch if head is not None else 0)
        checkpoints = there.checkpoints(accepted=accepted.accepts)
        owned = owner_line(head, self.host.name, described.fence)
        return checkpoints, claim(there.url, fence, checkpoints, accepted.proven, owned)

    def newest_state(self) -> standby_state.NewestState | None:
        while True:
            checkpoint = self._newest("")
            if checkpoint is None:
                return None
            name = checkpoint.name
            try:
                stored = self._checkpoint(name)
                return standby_state.NewestState(name, stored.manifest(), stored.train())
            except MidstreamError:
                if self.has(name):
                    raise
                # Retention has removed it since it was listed.

    def _newest(self, name: str) -> ListedCheckpoint | None:
        described = self.host.call(run_state.describe)(root=self.host.root, run_id=self.run_id)
        checkpoints = self.checkpoints(described)
        return newest_checkpoint(
            checkpoint for checkpoint in checkpoints if checkpoint.usable and name in ("", checkpoint.name)
        )

    def has(self, name: str) -> bool:
        return self._checkpoint(name).is_complete()

    def manifest(self, name: str) -> records.Manifest:
        return self._checkpoint(name).manifest()

    def data_digests(self, name: str) -> tuple[str, ...]:
        return tuple(records.data_digests(self._checkpoint(name).train()))

    def verify(self, name: str) -> VerifyReport:
        report = self._checkpoint(name).examine()
        problems = tuple(report.problems)
        same = report.recomputed == report.recorded
        return VerifyReport(
            ok=same and not problems,
            problems=problems,
            objects=report.objects,
            bytes=report.bytes,
            extra=tuple(report.extra),
            root_digest=report.recomputed,
            root_digest_ok=same,
        )

    def pin(self, migration: str, name: str, expires: float) -> None:
        self._run().pin(migration, name, expires)

    def pin_newest(self, migration: str, expires: float, name: str = "") -> ListedCheckpoint | None:
        while True:
            checkpoint = self._newest(name)
            if checkpoint is None:
                return None
            self.pin(migration, checkpoint.name, expires)
            if self.has(checkpoint.name):
                return checkpoint

    def unpin(self, migration: str) -> None:
        self._run().unpin(migration)


def same_bucket(here: CheckpointStore, there: CheckpointStore) -> bool:
    """Return whether both are the same bucket."""
    return bool(here.store) and here.store == there.store


def same_store(here: CheckpointStore, there: CheckpointStore) -> bool:
    """Return whether both are the same bucket, or the same directory of one host."""
    if isinstance(here, DirectoryStore) and isinstance(there, DirectoryStore):
        return here.host is there.host
    return same_bucket(here, there)


def copy_route(here: CheckpointStore, there: CheckpointStore, source: Host, target: Host) -> str:
    """Describe the route of a checkpoint's bytes, for a plan.

    Raises:
        HostError: There is no route.
    """
    if same_store(here, there):
        return f"none: source and target read {here.store or f'the same directory of {source.name}'}"
    between = bool(here.store and there.store)  # two buckets: neither needs a host
    ends = here.endpoint("x", None if between else target).host, there.endpoint("x", None if between else source).host
    return probe(*ends).text(ends[0].name, ends[1].name)


def store_conflict(host: Host, run_id: str, target_store: CheckpointStore, epoch: int) -> tuple[str, str]:
    """Return why a run at ``epoch`` cannot use ``target_store``, and the hint.

    ``target_store`` is the checkpoint store of a target. If the run can use it, both texts are empty.
    """
    paths = records.RunPaths(host.root, run_id)
    store = host.call(tree.store_of)(root=host.root, run_id=run_id)
    if store is not None and store.rstrip("/") != target_store.store:
        expected = target_store.store or "its own disk"
        return (
            f"{run_id} was on {host.name} before, with its checkpoints in {store}, and would have them on "
            f"{expected} now",
            f"store: {store} for {host.name} in the fleet file, or remove {paths.store_file} there",
        )
    if not isinstance(target_store, BucketStore):
        return "", ""
    if store is None and host.call(run_state.describe)(root=host.root, run_id=run_id).checkpoints:
        return (
            f"{run_id} was on {host.name} before, with its checkpoints in {paths.checkpoints}",
            f"remove store: of {host.name} in the fleet file, or that directory there if the source has all of it",
        )
    why, hint = BucketHost(target_store.store, target_store.access).access_problem(target_store.store)
    if why:
        return why, hint
    fence = BucketRun(target_store.store, run_id, target_store.access).fence()
    if fence is not None and fence.epoch > epoch:
        return (
            f"{target_store.store} has another run {run_id}: owned by {fence.owner} under ownership {fence.epoch}",
            f"midstream --repair {run_id} shows who owns it; for a new run choose another prefix or --run-id",
        )
    return "", ""
