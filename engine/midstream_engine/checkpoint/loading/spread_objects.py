"""Checkpoints whose objects are on several hosts: the objects missing here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from midstream_core.attempt.errors import CheckpointError
from midstream_core.records import Manifest
from midstream_engine.checkpoint.stores.object_store import ObjectStore


def missing_here(store: ObjectStore, manifest: Manifest) -> dict[str, str]:
    """Return the missing objects that another host has, with that host, by path.

    A missing object of this host is not among them: it is lost.
    """
    remote = {entry.path: host for host, entries in manifest.elsewhere.items() for entry in entries}
    if not remote:
        return {}
    stored = set(store.names())
    return {path: host for path, host in remote.items() if path not in stored}


def check_within_reach(store: ObjectStore, manifest: Manifest, paths: Iterable[str]) -> None:
    """Check, before any object is read, that the ``paths`` ones are stored here.

    Raises:
        CheckpointError: Some are on other hosts; the message has the number on each.
    """
    remote = missing_here(store, manifest)
    missing = [path for path in paths if path in remote]
    if not missing:
        return
    counts = Counter(remote[path] for path in missing)
    hosts = ", ".join(f"{count} on {host}" for host, count in sorted(counts.items()))
    raise CheckpointError(
        f"{store.where} is spread over {len(manifest.hosts)} hosts, and {len(missing)} of the objects that this "
        f"process needs are not here: {hosts} (the first: {missing[0]}) (hint: start the processes on the hosts that "
        "saved it, in the same order, or copy the objects to one store first, as a migration does)"
    )
