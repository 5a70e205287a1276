"""Wait for snapshots of a watcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.watcher import Watcher

PATIENCE = 60.0


def seen(watch: Watcher, holds: Callable[[Snapshot], Any]) -> Snapshot:
    """Return the first snapshot for which the condition is true."""
    found = watch.wait_for(holds, PATIENCE)
    assert found is not None, f"never seen; at last {watch.snapshot()}"
    return found


def run_of(snapshot: Snapshot, run_id: str = "run") -> RunView | None:
    return next(iter(snapshot.copies(run_id)), None)
