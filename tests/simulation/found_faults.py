"""Faults that the simulation itself has found, put back one at a time: it has to find each again."""

from __future__ import annotations

import time
from typing import Any

from midstream.migrate.phases import seal
from midstream.migrate.repair import fence_repair
from midstream.migrate.steps import observation, ownership_records, pins, source_return, target_progress
from midstream_core import records
from midstream_core.attempt import save_fence, status_file
from midstream_host.runs import ownership
from simulation.known_faults import known
from simulation.operating_system import replace_everywhere


@known
def numbered_start_commits_without_fence() -> None:
    """A job committed without a fence after its shared root was put back."""
    real = save_fence.check_not_removed
    replace_everywhere(real, lambda paths, start=0: real(paths))


@known
def incomplete_rollback_gives_up_steps() -> None:
    """An automatic rollback was continued, and gave up what the target had saved since."""
    replace_everywhere(target_progress.keeps_steps, lambda migration: False)


@known
def superseded_start_ends_the_job() -> None:
    """The end of a superseded start replaced the status of a requeued job, which counted as ended."""

    def is_superseded(path: str, mine: records.Status) -> bool:
        status = records.Status.read_or_none(path) if mine.start else None
        return status is not None and (status.epoch, status.start) > (mine.epoch, mine.start)

    replace_everywhere(status_file._is_superseded, is_superseded)
    replace_everywhere(seal._refuse_started_since, lambda migration: None)


@known
def unstarted_migration_is_undetermined() -> None:
    """The owner's root was restored before a migration from it had begun: `--continue` and `--repair` went round."""
    replace_everywhere(fence_repair._has_not_begun, lambda *_: False)


@known
def restored_source_has_nothing_to_undo() -> None:
    """The rollback to a source that was restored from before its seal left no owner."""
    replace_everywhere(seal.seal_restored, lambda migration: None)


@known
def restored_source_is_sealed_earlier() -> None:
    """A source restored from before its rehearsal's checkpoint was sealed at an earlier step."""
    replace_everywhere(source_return.seen_step, lambda migration: 0)


@known
def restored_lock_has_started_nothing() -> None:
    """The rollback to a source that was restored with its lock started it while the target trained."""

    def may_have_started(migration: Any) -> bool:
        source = migration.source
        lock = source.call(ownership.migration_lock)(root=source.root, run_id=migration.plan.run_id)
        return bool(lock is None or lock.start_allowed is None or lock.start_allowed)

    replace_everywhere(ownership_records.may_have_started, may_have_started)


@known
def pin_expires_by_own_clock() -> None:
    """A pin in a bucket expired by the clock of a host that was a day ahead."""
    replace_everywhere(pins.pin_expires, lambda migration: time.time() + pins.PIN_SECONDS)


@known
def damaged_status_is_awaited() -> None:
    """A power cut tore the target's status, and the migration waited for a week."""
    observation.UNSEEN_TIMEOUT = 1e9  # type: ignore[misc]


@known
def returned_run_is_completed() -> None:
    """A migration that a copy of its files had rolled back ended as completed."""
    replace_everywhere(ownership_records.is_returned, lambda migration: False)
