"""Checkpoints whose objects lie on several hosts: what is here, and what would have to be fetched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.stores.checkpoint_store import Store
from midstream_engine.records import Manifest


def not_here(store: Store, manifest: Manifest) -> dict[str, str]:
    """The objects that need not be here and are not: path -> the host that holds it. Those of this host are not among
    them: where one of these is missing, it is lost."""
    away = {entry.path: host for host, entries in manifest.elsewhere.items() for entry in entries}
    if not away:
        return {}
    there = set(store.names())
    return {path: host for path, host in away.items() if path not in there}


def check_within_reach(store: Store, manifest: Manifest, wanted: Iterable[str]) -> None:
    """CheckpointError, before any of them is read, where ``wanted`` objects lie on other hosts: how many on which."""
    away = not_here(store, manifest)
    missing = [path for path in wanted if path in away]
    if not missing:
        return
    counts = Counter(away[path] for path in missing)
    hosts = ", ".join(f"{count} on {host}" for host, count in sorted(counts.items()))
    raise CheckpointError(
        f"{store.where} is spread over {len(manifest.hosts)} hosts, and {len(missing)} of the objects that this "
        f"process needs are not here: {hosts} (the first: {missing[0]}); start the processes on the hosts that saved "
        "it, in the same order, or bring the objects together first, as a migration does"
    )
