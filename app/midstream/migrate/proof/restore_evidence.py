"""Evidence of a migration on the disks of source and target, for certificates."""

from __future__ import annotations

from collections.abc import Mapping

from midstream.errors import HostError
from midstream.hosts.host import Host
from midstream.migrate.journal.facts import Sealed
from midstream_core import records
from midstream_host.runs import losses as remote_losses
from midstream_host.runs import run_state

LOOKED_AT = 50  # newest attempts that are read: a host may show any number


def restored(target: Host, run_id: str, sealed: Sealed, newest: int) -> tuple[int, records.Restore] | None:
    """Return the attempt that restored the sealed checkpoint, and its evidence.

    Attempts are read from ``newest`` down, because an attempt after a failed one continues from a later checkpoint.
    If none restored the sealed checkpoint, the evidence of the newest restore of another one that the target has not
    written itself is returned; None where there is none.
    """
    newest_restore: tuple[int, records.Restore] | None = None
    for attempt in range(newest, max(sealed.attempt, newest - LOOKED_AT), -1):
        restore = target.call(run_state.restore_evidence)(root=target.root, run_id=run_id, attempt=attempt)
        if restore is None:
            continue
        if restore.checkpoint == sealed.checkpoint:
            return attempt, restore
        if not is_own(restore, sealed):
            newest_restore = newest_restore or (newest, restore)
    return newest_restore


def is_own(restore: records.Restore, sealed: Sealed) -> bool:
    """Return whether the target has restored what it had written itself."""
    named = records.parse_checkpoint_name(restore.checkpoint)
    return named is not None and named[1] > sealed.attempt


def losses(
    host: Host, run_id: str, attempt: int, first: int = 0, last: int | None = None
) -> list[remote_losses.MetricsRow]:
    """Read the metric rows with a loss of steps ``first`` to ``last`` of an attempt.

    Args:
        host: The host that has them.
        run_id: The run.
        attempt: Number of the attempt.
        first: First step.
        last: Last step; None: to the end.
    """
    return host.call(remote_losses.rows, timeout=300.0)(
        root=host.root, run_id=run_id, attempt=attempt, first=max(0, first), last=last
    )


def versions(host: Host | None, run_id: str, attempt: int) -> Mapping[str, str]:
    """Return the versions that an attempt has reported; empty where unknown."""
    if host is None:
        return {}
    try:
        status = host.call(run_state.status)(root=host.root, run_id=run_id, attempt=attempt).status
    except HostError:
        return {}
    return status.versions if status is not None else {}
