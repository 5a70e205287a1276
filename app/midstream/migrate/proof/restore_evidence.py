"""What source and target left of a move on their disks. The certificate is made of it, and checked by it later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host


def restored(target: Host, run_id: str, sealed: Mapping[str, Any], newest: int) -> tuple[int, records.Restore] | None:
    """The target's attempt that restored the sealed checkpoint, and what it wrote of that; attempts up to ``newest``
    are asked, the last first. A later one, where the first has died since, goes on from what the first had saved.
    Without one that restored it, the newest that restored anything; None where none did."""
    found: tuple[int, records.Restore] | None = None
    for attempt in range(newest, int(sealed["attempt"]), -1):
        value = target.call("runs.run_state.restore_evidence", root=target.root, run_id=run_id, attempt=attempt)
        if value is None:
            continue
        restore = records.Restore.from_json(value, f"{target.name}: restore.json of attempt {attempt}")
        if restore.checkpoint == sealed["checkpoint"]:
            return attempt, restore
        found = found or (newest, restore)
    return found


def losses(host: Host, run_id: str, attempt: int, first: int = 0, last: int | None = None) -> list[dict[str, Any]]:
    """Rows with a loss of steps ``first`` to ``last`` that an attempt logged on ``host``."""
    return host.call(
        "runs.losses.rows",
        root=host.root,
        run_id=run_id,
        attempt=attempt,
        first=max(0, first),
        last=last,
        timeout=300.0,
    )
