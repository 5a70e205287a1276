"""Leftovers of killed processes: on the fleet's hosts and in its buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from midstream.errors import DamagedError, HostError
from midstream.providers import fleet_slices
from midstream.providers.provider import OWNER_LABEL
from midstream_host.runs import leftovers as remote_leftovers
from midstream_host.runs import run_state, writers
from midstream_host.runs.writers import Writer
from midstream_host.verify import tree

if TYPE_CHECKING:
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool
    from midstream.providers.provider import Slice


@dataclass(frozen=True)
class FoundLeftover:
    """A file or directory that no process needs.

    ``kept`` is why it may not be removed; empty if it may.
    """

    host: str
    run: str
    path: str
    kind: str
    bytes: int
    kept: str
    removed: bool = False
    changed: float = 0.0  # UTC seconds of the newest change, by the clock of its host

    @property
    def note(self) -> str:
        """Outcome of the removal, or why the leftover stays."""
        return "removed" if self.removed else f"kept: {self.kept}" if self.kept else ""

    def is_as(self, listed: FoundLeftover) -> bool:
        """Return whether it is the one that was listed, unchanged."""
        return self == replace(listed, kept=self.kept, removed=self.removed)


CHANGED = "it has appeared or changed since the list was shown: list them again"


@dataclass(frozen=True)
class Skipped:
    """A host that does not answer (``run`` is empty), or a run with damaged records."""

    host: str
    run: str
    error: HostError

    @property
    def message(self) -> str:
        return f"{self.run or self.host} is skipped: {self.error}"


@dataclass(frozen=True)
class SliceLeftover:
    """A slice that no target names, or that has ended.

    ``kept`` is why it may not be removed; empty if it may.
    """

    slice: Slice
    kept: str
    removed: bool = False

    def is_as(self, listed: SliceLeftover) -> bool:
        """Return whether it is the slice that was listed, and no later one of its name."""
        now, then = self.slice, listed.slice
        return (now.path, now.identity, now.created) == (then.path, then.identity, then.created)

    @property
    def text(self) -> str:
        """Its state, its size and who created it."""
        return f"{self.slice.text()}, created by {self.slice.labels.get(OWNER_LABEL, 'midstream')}"

    @property
    def note(self) -> str:
        """The state of the leftover: removed, kept, or to be removed."""
        if self.removed:
            return "deleted"
        return f"kept: {self.kept}" if self.kept else "costs money or quota until deleted"


@dataclass(frozen=True)
class SliceProblem:
    """A failure to list or delete something, with its reason in one line."""

    message: str


AnyLeftover = FoundLeftover | Skipped | SliceLeftover | SliceProblem


@dataclass(frozen=True)
class ExaminedHost:
    """A host whose runs are about to be examined."""

    host: str
    runs: tuple[str, ...]


def find_leftovers(
    hosts: HostPool,
    run_id: str = "",
    *,
    remove: bool = False,
    agreed: Collection[AnyLeftover] | None = None,
) -> Iterator[FoundLeftover | Skipped | ExaminedHost]:
    """Yield the leftovers of one run, or of all, on every host that answers.

    With ``remove``, remove them. Consent covers what was shown: of the others, and of what has changed, nothing is.

    Args:
        hosts: Connections to the fleet's hosts.
        run_id: The run; empty for all.
        remove: Remove what may be removed.
        agreed: The leftovers that were listed and agreed to; None: all that are found.

    Raises:
        DamagedError: The records of ``run_id`` are damaged on a host that may own it.
    """
    fleet = hosts.fleet
    hosts_of: dict[str, list[str]] = {}  # run -> hosts that show it
    stores: dict[tuple[str, str], None] = {}  # run, URL of its checkpoints
    damaged: dict[str, DamagedError] = {}  # of the run that is named, by host
    unreachable = list(fleet.unavailable)
    for name in fleet.hosts:
        host = hosts.lookup(name)
        try:
            host.connect()
            runs = host.call(run_state.list_runs)(root=host.root)
        except HostError as error:
            unreachable.append(name)
            yield Skipped(name, "", error)
            continue
        yield ExaminedHost(name, tuple(runs))
        for shown_id in runs:
            if run_id and shown_id != run_id:
                continue
            hosts_of.setdefault(shown_id, []).append(name)
            try:
                store = host.call(tree.store_of)(root=host.root, run_id=shown_id)
                stores |= {(shown_id, store.rstrip("/")): None} if store else {}
                yield from _on_host(host, shown_id, remove, agreed)
            except DamagedError as error:
                if run_id:
                    damaged[name] = error
                yield Skipped(name, shown_id, error)
    if damaged:
        _refuse_owners_damage(hosts, run_id, hosts_of[run_id], damaged)
    unknown = [name for name in unreachable if not fleet_slices.is_preempted(fleet, name)] if stores else []
    for shown_id, store in stores:
        yield from _in_bucket(hosts, shown_id, store, hosts_of[shown_id], unknown, remove, agreed)


def _refuse_owners_damage(
    hosts: HostPool, run_id: str, names: Collection[str], damaged: Mapping[str, DamagedError]
) -> None:
    """Raise the error of a host whose damaged records may be those of the run's owner.

    Where an owner is proven, damage on a host that it does not have says nothing about the run.
    """
    from midstream.ownership.owner_judge import HostCopy, OwnerJudge

    copies: list[HostCopy] = []
    for name in names:
        host = hosts.lookup(name)
        try:
            owner_records = host.call(run_state.owner_records)(root=host.root, run_id=run_id)
        except HostError as error:
            raise damaged.get(name, error) from None
        copies.append(HostCopy(name, owner_records.fence, owner_records.ownership))
    judgement = OwnerJudge(hosts.fleet).judge(run_id, copies)
    for name, error in damaged.items():
        if judgement.chain is None or name in judgement.owner_hosts:
            raise error


def kept_unless_agreed(leftover: FoundLeftover | SliceLeftover, agreed: Collection[AnyLeftover] | None) -> str:
    """Return why a leftover may not be removed: its own reason, or no agreement."""
    if leftover.kept or agreed is None:
        return leftover.kept
    same = (
        isinstance(listed, FoundLeftover) and leftover.is_as(listed)
        if isinstance(leftover, FoundLeftover)
        else isinstance(listed, SliceLeftover) and leftover.is_as(listed)
        for listed in agreed
    )
    return "" if any(same) else CHANGED


def _on_host(host: Host, run_id: str, remove: bool, agreed: Collection[AnyLeftover] | None) -> Iterator[FoundLeftover]:
    entries = host.call(remote_leftovers.leftovers)(root=host.root, run_id=run_id)
    leftovers = [
        FoundLeftover(host.name, run_id, entry.path, entry.kind, entry.bytes, entry.kept, changed=entry.changed)
        for entry in entries
    ]
    if remove:
        leftovers = [replace(leftover, kept=kept_unless_agreed(leftover, agreed)) for leftover in leftovers]
    names = {leftover.path: leftover.changed for leftover in leftovers if not leftover.kept}
    removed = set[str]()
    if remove and names:
        removed = set(host.call(remote_leftovers.remove, timeout=None)(root=host.root, run_id=run_id, names=names))
    for leftover in leftovers:
        stays = CHANGED if remove and leftover.path in names and leftover.path not in removed else leftover.kept
        yield replace(leftover, kept=stays, removed=leftover.path in removed)


def _in_bucket(
    hosts: HostPool,
    run_id: str,
    store: str,
    names: list[str],
    unreachable: list[str],
    remove: bool,
    agreed: Collection[AnyLeftover] | None,
) -> Iterator[FoundLeftover | Skipped]:
    """Yield the leftovers in a run's bucket, which all hosts of the run may write to."""
    from midstream.stores.bucket_access import access_for
    from midstream.stores.bucket_run import BucketRun
    from midstream.stores.bucket_writers import BucketWriters

    reports: list[Writer] = []
    unreachable = list(unreachable)
    for name in names:
        host = hosts.get(name)
        try:
            reports += host.call(writers.writers)(root=host.root, run_id=run_id)
        except HostError as error:
            unreachable.append(name)
            yield Skipped(name, run_id, error)
    bucket_run = BucketRun(store, run_id, access_for(hosts.fleet, store))
    for entry in bucket_run.leftovers(BucketWriters(reports, unreachable)):
        leftover = FoundLeftover(names[0], run_id, **entry)
        if remove:
            leftover = replace(leftover, kept=kept_unless_agreed(leftover, agreed))
        if remove and not leftover.kept:
            bucket_run.remove(leftover.path)
            leftover = replace(leftover, removed=True)
        yield leftover
