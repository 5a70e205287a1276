"""Resume the source of a migration: undo the stop command and the seal."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.host_group import HostGroup
from midstream.migrate.steps.attempt_start import start_attempt
from midstream.migrate.steps.first_update import wait_training
from midstream.migrate.steps.migration import Migration, MovedOnError
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.ownership_records import chain_back, refuse_later_owner
from midstream.migrate.steps.record_commands import show_command, show_fence
from midstream.migrate.steps.stop_command import adopt_stop, commanded_attempt
from midstream.ownership import memory
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint, newest_checkpoint
from midstream_host.runs import ownership, run_state, standby_state

WITHDRAW_TIMEOUT = 900.0  # seconds


def owns_run(migration: Migration) -> bool:
    """Return whether this migration has the source's migration lock.

    Without the lock it changes nothing there.
    """
    lock = migration.source.call(ownership.migration_lock)(root=migration.source.root, run_id=migration.plan.run_id)
    return lock is not None and lock.migration == migration.plan.migration


def withdraw_stop(migration: Migration) -> None:
    """Replace a pending stop command by a save; wait for the engine's report.

    The engine reports which of the two it did.
    """
    if migration.journal.facts.sealed:
        return
    attempt = commanded_attempt(migration)
    if attempt is None:
        return
    ordered = adopt_stop(migration) or 0
    source, run_id = migration.source, migration.plan.run_id
    state = source.call(run_state.status)(root=source.root, run_id=run_id, attempt=attempt)
    if not state.running:
        return
    before = state.status
    if ordered and before is not None and before.rejected >= ordered:
        return  # it was rejected, and no later command was sent
    command = records.Command(records.SAVE, epoch=migration.plan.source_epoch, migration=migration.plan.migration)
    sequence = source.call(ownership.send_command)(
        root=source.root, run_id=run_id, attempt=attempt, command=command.to_json()
    )
    migration.log_command(
        source,
        f"command: save and continue, in place of the stop (attempt {attempt})",
        shows=show_command(migration.source_paths, attempt),
    )

    def answered(run: RunView) -> bool:
        if run.attempt != attempt or run.state in records.ENDED or run.state == "lost":
            return True
        status = run.status
        if status is None:
            return False
        if status.acknowledged >= sequence or (ordered and status.rejected >= ordered):
            return True
        # A new message while it trains: it cannot save, so it has read the newer command or rejected the older one.
        reports_failure = bool(status.message) and status.message != (before.message if before else None)
        return reports_failure and status.state == records.TRAINING

    wait_for(migration, "the source's answer to the withdrawn stop", source.name, answered, WITHDRAW_TIMEOUT)


def resume_unsealed(migration: Migration, fence: records.Fence) -> None:
    """Resume a source that was not sealed: restart it if it stopped on this command."""
    refuse_later_owner(migration, returning=True)
    attempt = migration.journal.facts.sealing_attempt
    if attempt is None:
        migration.note(f"{migration.plan.source} was not commanded to stop: nothing to undo there")
        return
    answer = migration.source.call(run_state.status)(
        root=migration.source.root, run_id=migration.plan.run_id, attempt=attempt
    )
    state = answer.status.state if answer.status else ""
    if state in records.ENDED and answer.running:
        migration.source_group.wait_exited(attempt)
    elif answer.running:
        migration.note(f"{migration.plan.source} still owns the run: it keeps training")
        return
    if state in (records.FINISHED, records.FAILED):
        migration.note(
            f"{migration.plan.source} still owns the run, and ended by itself ({state}): it is not restarted"
        )
        return
    usable = migration.source_group.describe().usable
    if not usable:
        migration.note(
            f"{migration.plan.source} still owns the run, and {migration.plan.run_id} has no complete checkpoint there"
        )
        return
    number = migration.source_group.running_attempt()
    if not number:
        _refuse_older_copy(migration, max(checkpoint.step for checkpoint in usable))
        number = _start_source(migration, fence, None)
    wait_training(migration, migration.source_group, number)
    migration.note(f"{migration.plan.run_id} runs on {migration.plan.source} again")


def seen_step(migration: Migration) -> int:
    """Return the newest saved step that the source has shown to this migration.

    What this machine has seen before counts, unless the plan's user has agreed to an older state.
    """
    plan, rehearsal = migration.plan, migration.journal.facts.rehearsal
    seen, remembered = rehearsal.step if rehearsal is not None else 0, memory.recall(plan.run_id)
    if remembered is not None and remembered.epoch == plan.source_epoch and remembered.step is not None:
        seen = max(seen, remembered.step if remembered.step <= plan.route.source_step else 0)
    return seen


def _refuse_older_copy(migration: Migration, step: int) -> None:
    """Raise MidstreamError where a start from ``step`` gives up saved steps.

    Not where the user has agreed to that.
    """
    plan, seen = migration.plan, seen_step(migration)
    if step < seen and not migration.directory.losses_agreed():
        raise MidstreamError(
            f"{plan.source} shows step {step} of {plan.run_id}, and had step {seen}: the copy is an older one, "
            "restored perhaps, and a start from it gives up later steps",
            f"where its disk is back, midstream --continue {plan.migration} goes on; midstream --rollback "
            f"{plan.migration} --yes gives them up",
        )


def source_fence(migration: Migration) -> records.Fence:
    fence = migration.source_group.describe().fence
    if fence is None:
        run_id = migration.plan.run_id
        raise MidstreamError(f"{migration.source.name}: run {run_id} has no fence", f"midstream --repair {run_id}")
    return fence


def returned_fence(migration: Migration, fence: records.Fence) -> records.Fence:
    """Return the fence of the next epoch, owned by the owner before the migration.

    The run continues from its own newest checkpoint. MovedOnError if a later migration owns the run.
    """
    plan = migration.plan
    refuse_later_owner(migration, returning=True)
    owner = migration.journal.facts.owner_before or plan.source
    if fence.epoch == plan.epoch + 1 and fence.owner == owner:
        return fence  # an earlier process of this rollback has written it
    if fence.epoch == plan.epoch and fence.owner == plan.target and fence.sealed_step is not None:
        described = migration.source_group.describe()
        own = [
            checkpoint.step
            for checkpoint in described.checkpoints
            if checkpoint.complete and _is_own(migration, checkpoint)
        ]
        return fence.rolled_back(owner, max([fence.sealed_step, *own]))
    raise MovedOnError(
        f"run {plan.run_id} is at ownership {fence.epoch} (owner {fence.owner}) already: a later migration has it",
        "midstream --status shows where it is",
    )


def _is_own(migration: Migration, checkpoint: ListedCheckpoint) -> bool:
    """Return whether a checkpoint is the source's own, not the target's.

    The source's fence accepts it, or it has the sealed epoch. Checkpoints of the target may be in the same bucket or
    directory.
    """
    plan = migration.plan
    return checkpoint.epoch < plan.epoch and (checkpoint.accepted or checkpoint.epoch == plan.source_epoch)


def put_fence(migration: Migration, group: HostGroup, back: records.Fence) -> None:
    """Write the fence of a rollback on a group's hosts.

    The source refuses it where the target is open and another process has got the permission to start that.
    """
    chain, closed = chain_back(migration, back), group is migration.target_group or migration.target_closed
    group.put_fence(back, migration.plan.migration, chain, None if closed else migration.process)
    if chain is not None:
        memory.remember(chain)  # after a host has stored it, as in `hand_over`
    migration.log_command(
        group.first,
        f"fence: ownership {back.epoch}, owner {back.owner}, last migrated at step {back.sealed_step}",
        shows=show_fence(group.paths),
    )


def reopen_source(migration: Migration, back: records.Fence) -> None:
    plan, source = migration.plan, migration.source
    put_fence(migration, migration.source_group, back)
    if not migration.journal.facts.source_was_running:
        migration.note(
            f"the source did not run before the migration and is not started; it is at step {back.sealed_step}"
        )
        return
    number = _start_source(migration, back, back.sealed_step)
    wait_training(migration, migration.source_group, number)
    migration.note(f"{plan.run_id} runs on {source.name} again, from step {back.sealed_step}")


def _start_source(migration: Migration, fence: records.Fence, step: int | None) -> int:
    """Start the source's attempt under ``fence``, and return its number.

    An attempt that an earlier process of this rollback started is adopted if it runs. A new one starts from the newest
    checkpoint, or from that of ``step``.
    """
    plan, source = migration.plan, migration.source
    attempt, described = migration.source_group.attempt_of_migration(plan.migration), migration.source_group.describe()
    facts = migration.journal.facts
    old = described.attempt if facts.sealing_attempt is None else facts.sealing_attempt
    ours = attempt is not None and attempt.attempt > old and attempt.epoch == fence.epoch
    if (
        attempt is not None
        and ours
        and (attempt.running or (attempt.status is not None and attempt.status.state == records.FINISHED))
    ):
        return attempt.attempt
    if not ours:
        migration.source_group.wait_exited(old)  # it is sealed or `stopped`, and its process still has to exit
    checkpoint = newest_checkpoint(checkpoint for checkpoint in described.usable if step in (None, checkpoint.step))
    if checkpoint is None:
        what = "any complete checkpoint" if step is None else f"checkpoint step {step}"
        raise MidstreamError(f"{source.name} has lost {what}", "midstream --checkpoints RUN")
    migration.source_group.distribute_checkpoint(checkpoint.name)
    if facts.source_config is not None:
        source.call(standby_state.keep_config)(root=source.root, run_id=plan.run_id, text=facts.source_config)
    command = records.Command(
        records.RESTORE,
        epoch=fence.epoch,
        checkpoint=checkpoint.name,
        root_digest=checkpoint.root_digest,
        step=checkpoint.step,
        migration=plan.migration,
    )
    at_least = max(described.attempt, facts.target_attempt or 0, facts.standby_attempt or 0) + 1
    return start_attempt(migration, migration.source_group, command, owner=fence.owner, at_least=at_least)
