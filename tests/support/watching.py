"""What tests of the watch look for, with patience."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from midstream.watch.snapshot import RunView, Snapshot
from midstream.watch.watcher import Watch

PATIENCE = 60.0


def seen(watch: Watch, holds: Callable[[Snapshot], Any]) -> Snapshot:
    """The first snapshot that it holds for."""
    found = watch.wait_for(holds, PATIENCE)
    assert found is not None, f"never seen; at last {watch.snapshot()}"
    return found


def run_of(snapshot: Snapshot, run_id: str = "run") -> RunView | None:
    return next(iter(snapshot.copies(run_id)), None)
