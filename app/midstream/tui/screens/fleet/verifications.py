"""Verifications of checkpoints and certificates, and what they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from midstream.check.check_result import FAIL, WARN
from midstream.counts import count
from midstream.migrate.journal.migration_view import MigrationView
from midstream.tui.actions import Actions
from midstream.tui.style import number_format
from midstream.watch.snapshot import CheckpointView, RunView

CONCURRENCY = 4  # verifications at a time: each reads a checkpoint
VERIFIED, DAMAGED, UNKNOWN = "verified", "damaged", "not checked"
LISTED = 6  # hosts and buckets that a question lists by name


class Verification(Protocol):
    """One verification."""

    @property
    def name(self) -> str: ...

    @property
    def reads(self) -> Sequence[tuple[str, str, int]]:
        """What is hashed: (host, URL of the store, bytes) of each copy.

        The URL is empty where a host reads its own disk. 0 bytes: not known.
        """
        ...

    def verify(self) -> tuple[str, str]:
        """Return (state, detail)."""
        ...


class CheckpointVerification:
    """Every object of a checkpoint is hashed in place."""

    __slots__ = ("_actions", "_checkpoint", "_run")

    def __init__(self, actions: Actions, run: RunView, checkpoint: CheckpointView) -> None:
        self._actions = actions
        self._run = run
        self._checkpoint = checkpoint

    @property
    def name(self) -> str:
        return f"{self._run.run_id}: {self._checkpoint.name} on {self._run.host}"

    @property
    def reads(self) -> Sequence[tuple[str, str, int]]:
        return ((self._run.host, self._run.store, self._checkpoint.size),)

    def verify(self) -> tuple[str, str]:
        problems = self._actions.verify(self._run, self._checkpoint.name)
        return (DAMAGED, "; ".join(problems)) if problems else (VERIFIED, "every object matches the manifest")


class CertificateVerification:
    """All claims of a certificate are checked again, and both copies of its checkpoint are hashed."""

    __slots__ = ("_actions", "_view")

    def __init__(self, actions: Actions, view: MigrationView) -> None:
        self._actions = actions
        self._view = view

    @property
    def name(self) -> str:
        return self._view.migration

    @property
    def reads(self) -> Sequence[tuple[str, str, int]]:
        plan, sealed = self._view.plan, self._view.facts.sealed
        size = (sealed.bytes if sealed is not None else 0) or plan.estimate.checkpoint_bytes
        return (
            (plan.source, plan.route.source_store, size),
            (plan.target_host, plan.route.target_store, size),
        )

    def verify(self) -> tuple[str, str]:
        checks = self._actions.recheck(self._view)
        failed = next((check for check in checks if check.state == FAIL), None)
        if failed is not None:
            return DAMAGED, f"{failed.name}: {failed.detail}"
        unchecked = [check.name for check in checks if check.state == WARN]
        checked = f"{len(checks) - len(unchecked)} of {len(checks)} claims"
        return VERIFIED, checked + (f"; not checked: {', '.join(unchecked)}" if unchecked else "")


def of_checkpoints(actions: Actions, runs: Iterable[RunView]) -> list[Verification]:
    """Return a verification of each complete checkpoint of these runs."""
    return [CheckpointVerification(actions, run, each) for run in runs for each in run.checkpoints if each.complete]


def of_migrations(actions: Actions, migrations: Iterable[MigrationView]) -> list[Verification]:
    """Return a verification of each certificate."""
    return [CertificateVerification(actions, view) for view in migrations if view.certificate is not None]


def question(verifications: Sequence[Verification], noun: str) -> tuple[str, list[str]]:
    """Return the title and the lines of the question before anything is read.

    Args:
        verifications: What is to be verified.
        noun: What one of them is about, ``checkpoint`` or ``certificate``.
    """
    on_hosts, in_buckets, unknown = dict[str, int](), dict[str, int](), 0
    for each in verifications:
        for host, store, size in each.reads:
            found, place = (in_buckets, "/".join(store.split("/")[:3])) if store else (on_hosts, host)
            found[place] = found.get(place, 0) + size
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
    return f"Verify {count(len(verifications), noun)}", lines


def _size(places: Mapping[str, int]) -> str:
    return number_format.size(sum(places.values()))


def _listed(places: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    names = list(places)
    more = f" and {len(names) - LISTED:,} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more
