"""Verifications of checkpoints and certificates, and what they read."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from midstream import format
from midstream.check.check_result import FAIL, WARN
from midstream.counts import count
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.actions import Actions
from midstream.watch.snapshot import RunView
from midstream_core.listed_checkpoint import ListedCheckpoint

CONCURRENCY = 4  # verifications at a time: each reads a checkpoint
VERIFIED, DAMAGED, UNKNOWN = "verified", "damaged", "not checked"
INTACT = (VERIFIED, "every object matches the manifest")  # one for all: there may be 100,000
LISTED = 6  # hosts and buckets that a question lists by name


@dataclass(frozen=True)
class Verification:
    """One verification: its name, and a function that returns (state, detail)."""

    name: str
    run: Callable[[], tuple[str, str]]


class Verifications(Protocol):
    """Verifications by index. Each is made when it is read: there may be 100,000.

    Creating and counting them takes 0.1 s then: it is not done in the background.
    """

    @property
    def noun(self) -> str:
        """Name of what one of them verifies."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Verification: ...

    def reads(self) -> Iterator[tuple[str, str, int]]:
        """Yield (host, URL of the store, bytes) of each copy of a checkpoint.

        All of it is hashed. The URL is empty where a host reads its own disk. 0 bytes: not known.
        """
        ...


class CheckpointVerifications:
    """All complete checkpoints of runs: every object is hashed in place."""

    noun = "checkpoint"

    def __init__(self, actions: Actions, runs: Iterable[RunView]) -> None:
        self._actions = actions
        self._runs: list[RunView] = []  # of each checkpoint
        self._places = array("L")  # of each checkpoint, among those of its run
        for run in runs:
            for place, checkpoint in enumerate(run.checkpoints):
                if checkpoint.complete:
                    self._runs.append(run)
                    self._places.append(place)

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, index: int) -> Verification:
        run, checkpoint = self._checkpoint(index)
        return Verification(
            f"{run.run_id}: {checkpoint.name} on {run.host}", partial(self._verify, run, checkpoint.name)
        )

    def reads(self) -> Iterator[tuple[str, str, int]]:
        for run, place in zip(self._runs, self._places, strict=True):
            yield run.host, run.store, run.checkpoints[place].size

    def _checkpoint(self, index: int) -> tuple[RunView, ListedCheckpoint]:
        run = self._runs[index]
        return run, run.checkpoints[self._places[index]]

    def _verify(self, run: RunView, name: str) -> tuple[str, str]:
        problems = self._actions.verify(run, name)
        return (DAMAGED, "; ".join(problems)) if problems else INTACT


class CertificateVerifications:
    """All certificates: claims are checked again, both copies are hashed."""

    noun = "certificate"

    def __init__(self, actions: Actions, migrations: Iterable[MigrationView]) -> None:
        self._actions = actions
        self._views = [view for view in migrations if view.certificate is not None]

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, index: int) -> Verification:
        view = self._views[index]
        return Verification(view.migration, partial(self._recheck, view))

    def reads(self) -> Iterator[tuple[str, str, int]]:
        for view in self._views:
            plan, sealed = view.plan, view.facts.sealed
            size = (sealed.bytes if sealed is not None else 0) or plan.estimate.checkpoint_bytes
            yield plan.source, plan.route.source_store, size
            yield plan.target_host, plan.route.target_store, size

    def _recheck(self, view: MigrationView) -> tuple[str, str]:
        checks = self._actions.recheck(view)
        failed = next((check for check in checks if check.state == FAIL), None)
        if failed is not None:
            return DAMAGED, f"{failed.name}: {failed.detail}"
        unchecked = [check.name for check in checks if check.state == WARN]
        checked = f"{len(checks) - len(unchecked)} of {len(checks)} claims"
        return VERIFIED, checked + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")


def question(verifications: Verifications) -> tuple[str, Sequence[str]]:
    """Return the title and the lines of the question before anything is read."""
    on_hosts, in_buckets, unknown = dict[str, int](), dict[str, int](), 0
    for host, store, size in verifications.reads():
        sizes, place = (in_buckets, "/".join(store.split("/")[:3])) if store else (on_hosts, host)
        sizes[place] = sizes.get(place, 0) + size
        unknown += not size
    lines: list[str] = []
    if on_hosts:
        hosts = count(len(on_hosts), "host")
        lines += [f"{_size(on_hosts)} are read and hashed on {hosts}: {_listed(on_hosts)}."]
    if in_buckets:
        buckets = count(len(in_buckets), "bucket")
        lines += [
            f"{_size(in_buckets)} are downloaded from {buckets} to this machine and hashed: {_listed(in_buckets)}.",
            "Downloads can cost money.",
        ]
    if unknown:
        lines += [f"The size of {count(unknown, 'copy', 'copies')} is unknown and not included."]
    lines += [f"{CONCURRENCY} at a time. Nothing is changed; esc ends it."]
    return f"Verify {count(len(verifications), verifications.noun)}", lines


def _size(places: Mapping[str, int]) -> str:
    return format.size(sum(places.values()))


def _listed(places: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    names = list(places)
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
