"""Wait for the first update of an attempt."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.phases.attempts.queue_wait import check_devices, wait_in_queue
from midstream.migrate.phases.context.migration import Migration
from midstream.migrate.phases.context.observation import wait_for
from midstream.migrate.source_and_target.host_group import HostGroup
from midstream.watch.snapshot import RunView
from midstream_engine import records

START_TIMEOUT = 1800.0  # seconds: restore and compile of a large model


def wait_training(migration: Migration, group: HostGroup, attempt: int) -> RunView:
    """Wait until the attempt has done an update.

    Raises:
        MidstreamError: the attempt ended; the message has its last log line.
    """

    def decided(run: RunView) -> bool:
        if run.attempt != attempt:
            return False
        if run.state in records.ENDED or run.state == "lost":
            return True
        return any(row["attempt"] == attempt and "train/loss" in row for row in run.curve[-64:])

    wait_in_queue(migration, group, attempt)
    host = group.first.name
    run = wait_for(
        migration,
        "the first update of the new attempt",
        host,
        decided,
        START_TIMEOUT,
        lambda: group.check_group(attempt),
    )
    if run.state in ("failed", "stopped", "lost"):
        why = group.why_ended(attempt, run)
        raise MidstreamError(
            f"attempt {attempt} on {group.target.name} ended ({run.state}): {why}",
            f"its log: {host}:{group.paths.attempt(attempt).log()}",
        )
    check_devices(migration, group, run.status)
    return run
