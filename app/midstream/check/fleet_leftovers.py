"""Leftovers of killed processes: on the fleet's hosts and in its buckets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from midstream.errors import DamagedError, HostError
from midstream.hosts.providers.provider import OWNER_LABEL
from midstream.remote.runs import leftovers as remote_leftovers
from midstream.remote.runs import run_state
from midstream.remote.verify import tree

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet
    from midstream.hosts.host import Host
    from midstream.hosts.host_pool import HostPool
    from midstream.hosts.providers.provider import Slice


@dataclass(frozen=True)
class Leftover:
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


@dataclass(frozen=True)
class Skipped:
    """A host that does not answer (``run`` is empty), or a run with damaged records."""

    host: str
    run: str
    error: HostError


@dataclass(frozen=True)
class SliceLeftover:
    """A slice that no target names, or that has ended.

    ``kept`` is why it may not be removed; empty if it may.
    """

    slice: Slice
    kept: str
    removed: bool = False

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


AnyLeftover = Leftover | Skipped | SliceLeftover | SliceProblem


@dataclass(frozen=True)
class Examined:
    """A host whose runs are about to be examined."""

    host: str
    runs: tuple[str, ...]


def find_leftovers(
    fleet: Fleet, hosts: HostPool, run_id: str = "", *, remove: bool = False
) -> Iterator[Leftover | Skipped | Examined]:
    """Yield the leftovers of one run, or of all, on every host that answers.

    With ``remove``, remove them.

    Args:
        fleet: The fleet.
        hosts: Connections to its hosts.
        run_id: The run; empty for all.
        remove: Remove what may be removed.

    Raises:
        DamagedError: The records of ``run_id`` are damaged.
    """
    for name in fleet.hosts:
        host = hosts.lookup(name)
        try:
            host.connect()
            runs = host.call(run_state.list_runs)(root=host.root)
        except HostError as error:
            yield Skipped(name, "", error)
            continue
        yield Examined(name, tuple(runs))
        for each in runs:
            if run_id and each != run_id:
                continue
            try:
                yield from _in_bucket(fleet, host, each, remove)
                yield from _on_host(host, each, remove)
            except DamagedError as error:
                if run_id:
                    raise
                yield Skipped(name, each, error)


def _on_host(host: Host, run_id: str, remove: bool) -> Iterator[Leftover]:
    found = host.call(remote_leftovers.leftovers)(root=host.root, run_id=run_id)
    names = [entry.path for entry in found if not entry.kept]
    removed = set[str]()
    if remove and names:
        removed = set(host.call(remote_leftovers.remove, timeout=None)(root=host.root, run_id=run_id, names=names))
    for entry in found:
        yield Leftover(host.name, run_id, entry.path, entry.kind, entry.bytes, entry.kept, entry.path in removed)


def _in_bucket(fleet: Fleet, host: Host, run_id: str, remove: bool) -> Iterator[Leftover]:
    store = host.call(tree.store_of)(root=host.root, run_id=run_id)
    if store is None:
        return
    from midstream.stores.bucket_access import access_for
    from midstream.stores.bucket_run import BucketRun

    bucket_run = BucketRun(store, run_id, access_for(fleet, store))
    running = dict(host.call(remote_leftovers.running_writer)(root=host.root, run_id=run_id))
    for entry in bucket_run.leftovers(running):
        removed = remove and not entry["kept"]
        if removed:
            bucket_run.remove(entry["path"])
        yield Leftover(host.name, run_id, entry["path"], entry["kind"], entry["bytes"], entry["kept"], removed)
