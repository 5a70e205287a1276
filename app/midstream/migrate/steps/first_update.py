"""Wait for the first update of an attempt."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.launch.attempt_monitor import FIRST_STEP_TIMEOUT
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.awaited_attempt import check_can_train
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.queue_wait import check_devices, wait_in_queue
from midstream.watch.snapshot import RunView
from midstream_core import records


class ContradictionError(MidstreamError):
    """The attempt ended by its own evidence: what it restored is not the run's state."""


def wait_training(migration: Migration, group: HostGroup, attempt: int) -> RunView:
    """Wait until the attempt has done an update.

    Raises:
        ContradictionError: the attempt ended because the state that it restored is not the run's.
        MidstreamError: the attempt ended; the message has its last log line. Or it can never do one.
    """

    def decided(run: RunView) -> bool:
        if run.attempt != attempt:
            return False
        if run.state in records.ENDED or run.state == "lost":
            return True
        if run.status is not None and run.status.contradiction:  # the certificate fails for it
            return True
        return any(row["attempt"] == attempt and "train/loss" in row for row in run.curve[-64:])

    wait_in_queue(migration, group, attempt)
    host = group.first.name
    run = wait_for(
        migration,
        "the first update of the new attempt",
        host,
        decided,
        FIRST_STEP_TIMEOUT,
        lambda: check_can_train(migration, group, attempt),
    )
    if run.state in ("failed", "stopped", "lost"):
        why = group.why_ended(attempt, run)
        if run.status is not None and run.status.contradiction:
            raise ContradictionError(
                f"attempt {attempt} on {group.target.name} has ended: {run.status.contradiction}",
                f"its log: {host}:{group.paths.attempt(attempt).log()}",
            )
        raise MidstreamError(
            f"attempt {attempt} on {group.target.name} ended ({run.state}): {why}",
            f"its log: {host}:{group.paths.attempt(attempt).log()}",
        )
    check_devices(migration, group, run.status)
    return run
