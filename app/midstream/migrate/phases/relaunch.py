"""Give the target the fence, and start the run there from the sealed checkpoint."""

from __future__ import annotations

import contextlib
import time

from midstream.migrate import stages
from midstream.migrate.journal.facts import Facts, Sealed, required
from midstream.migrate.journal.phase_names import RELAUNCH
from midstream.migrate.phases.cutover import copy_run_history, copy_state
from midstream.migrate.phases.seal import seal_restored
from midstream.migrate.source_config import agreed_config
from midstream.migrate.steps import prepare_standby, replica
from midstream.migrate.steps.attempt_start import start_attempt
from midstream.migrate.steps.first_update import ContradictionError, wait_training
from midstream.migrate.steps.migration import Migration, replayed
from midstream.migrate.steps.ownership_records import chain_of_target, hand_over
from midstream.migrate.steps.pins import pin
from midstream.migrate.steps.preemption import unless_preempted
from midstream.migrate.steps.rollback_outcome import join_rollback
from midstream.migrate.steps.source_return import owns_run, returned_fence, source_fence, withdraw_stop
from midstream.migrate.steps.streamed_copy import StreamedCopy
from midstream.migrate.steps.target_close import close_target
from midstream.migrate.steps.target_progress import newest_of_target
from midstream_core import records
from midstream_host.runs import run_state


class Relaunch:
    """Start the run on the target.

    Runs only after the seal: the journal's fact ``sealed`` is the evidence. Never starts a second engine: an attempt of
    this migration that runs is adopted.
    """

    name = RELAUNCH

    def run(self, migration: Migration) -> None:
        sealed, started = (
            required(migration.journal.facts.sealed, "sealed"),
            migration.journal.facts.target_attempt is not None,
        )
        plan = migration.plan
        if started and self._was_moved_on(migration):
            join_rollback(migration)
            return
        if migration.journal.facts.training_confirmed_at is None:
            migration.clock.begin(stages.DOWNTIME, migration.phase)
        if migration.source_group.checkpoint_store.store:  # the target's retention may work in the same bucket
            pin(migration, sealed.checkpoint)  # first: a rollback may come before it is seen to train
        hand_over(migration, sealed)
        migration.journal.record(Facts(relaunching=True))  # from here on a rollback has to look at the target
        number = None if started else self._take_over(migration, sealed)
        if number is None:
            number = self._start_or_adopt(migration, sealed)
        migration.prepared_calls.close()
        migration.journal.record(Facts(target_attempt=number))
        with contextlib.suppress(ContradictionError):  # the certificate fails for it, and has the losses
            wait_training(migration, migration.target_group, number)
        if migration.journal.facts.training_confirmed_at is None:
            migration.journal.record(Facts(training_confirmed_at=time.time()))
        migration.clock.end(migration.phase)
        if plan.has_standby and not migration.journal.facts.history_copied:
            with unless_preempted(
                migration.fleet, migration.source_group.target, migration.note, "the curve up to the stop is not copied"
            ):
                copy_run_history(migration, resolved=True)
            migration.journal.record(Facts(history_copied=True))

    def undo(self, migration: Migration) -> None:
        """End the standby; if the run was sealed, close the target under the next epoch."""
        prepare_standby.end_standby_if_reachable(migration)
        seal_restored(migration)
        if not owns_run(migration):
            return
        withdraw_stop(migration)  # after this the source can no longer seal itself
        fence = source_fence(migration)
        if fence.epoch >= migration.plan.epoch:
            migration.gives_up |= fence.epoch > migration.plan.epoch  # the source is given back: nothing goes on
            close_target(migration, returned_fence(migration, fence))

    @staticmethod
    def _take_over(migration: Migration, sealed: Sealed) -> int | None:
        """Return the standby's attempt once it took over; None if one has to be started."""
        if not migration.plan.has_standby:
            return None
        if replayed(migration):
            number = prepare_standby.take_over(
                migration, prepare_standby.promote_command(migration, sealed.starting_point), sealed
            )
            if number is not None:
                return number
            replica.fall_back(migration, "the replica could not be promoted")
            copy_state(migration, sealed.checkpoint, StreamedCopy())
        return prepare_standby.take_over(
            migration, prepare_standby.restore_command(migration, sealed.starting_point), sealed
        )

    def _start_or_adopt(self, migration: Migration, sealed: Sealed) -> int:
        plan, target = migration.plan, migration.target
        if migration.source is target:  # in one run directory, one attempt runs at a time
            migration.source_group.wait_exited(sealed.attempt)
            if migration.journal.facts.source_config is None:  # the target's attempt writes its own there
                migration.journal.record(Facts(source_config=agreed_config(migration.source, plan)))
        migration.target_group.put_fence(sealed.fence, plan.migration, chain_of_target(migration))
        if prepare_standby.adopt_standby(migration) is not None:  # it runs, and no command to train was sent to it
            number = self._take_over(migration, sealed)
            if number is not None:
                return number
        number = _present_attempt(migration)
        if number is not None:
            migration.note(f"attempt {number} of this migration runs on {target.name} already")
            return number
        if plan.has_standby:
            copy_run_history(migration)
        migration.target_group.share_config()
        starting_point = newest_of_target(migration) or sealed.starting_point
        migration.target_group.distribute_checkpoint(starting_point.name)
        if migration.journal.facts.relaunch_started_at is None:
            migration.journal.record(Facts(relaunch_started_at=time.time()))
        command = prepare_standby.restore_command(migration, starting_point)
        at_least = max(sealed.attempt, migration.journal.facts.standby_attempt or 0) + 1
        return start_attempt(migration, migration.target_group, command, owner=plan.target, at_least=at_least)

    @staticmethod
    def _was_moved_on(migration: Migration) -> bool:
        """Return whether a later migration took the run from the target."""
        plan, target = migration.plan, migration.target
        described = target.call(run_state.describe)(root=target.root, run_id=plan.run_id)
        epoch = described.fence.epoch if described.fence else 0
        return epoch > plan.epoch


def _present_attempt(migration: Migration) -> int | None:
    """Return this migration's attempt on the target that runs or has finished."""
    attempt = migration.target_group.attempt_of_migration(migration.plan.migration)
    if attempt is None:
        return None
    finished = attempt.status is not None and attempt.status.state == records.FINISHED
    return attempt.attempt if attempt.running or finished else None
