"""Seal the source: obtain evidence that no older epoch commits on it any more."""

from __future__ import annotations

import time

from midstream.errors import HostError, MidstreamError, RemoteError
from midstream.launch.process_lease import wait_for_lease
from midstream.migrate import host_files
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.steps.migration import Migration, replayed
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.ownership_records import refuse_later_owner, signed_seal
from midstream.migrate.steps.record_commands import show_command, show_fence
from midstream.migrate.steps.rollback_outcome import ran_before
from midstream.migrate.steps.source_return import seen_step
from midstream.migrate.steps.stop_command import adopt_stop
from midstream.migrate.steps.streamed_copy import Answer, StreamedCopy, stream_until_answered
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_host.runs import ownership
from midstream_host.runs.run_state import RunDescription

SEAL_TIMEOUT = 900.0  # seconds: a step and a save of a large run
LOCK_SECONDS = 2 * SEAL_TIMEOUT  # seconds for which the migration lock keeps other migrations out before the seal


def seal(migration: Migration, streamed: StreamedCopy, at: int | None = None) -> Sealed:
    """Seal the source under the new epoch, and return what it was sealed with.

    If ``at`` is given, a running source trains up to that step first.
    """
    fence = _acquire(migration)
    described = migration.source_group.describe()
    if fence.epoch < migration.plan.epoch:
        if migration.journal.facts.owner_before is None:
            migration.journal.record(Facts(owner_before=fence.owner, seal_started_at=time.time()))
        if described.running:
            _refuse_started_since(migration)
            described, ours = _stop(migration, described, streamed, at)
            if ours:
                return _put_on_all_hosts(migration, _sealed_facts(migration, described))
        if _required_fence(migration, described).epoch < migration.plan.epoch:
            _acquire(migration)  # its disk may have been put back, without the lock
            _seal_closed(migration, described)
    _acquire(migration)  # the seal may be another migration's: then this raises
    facts = migration.journal.facts
    if facts.sealing_attempt is not None and facts.stop_confirmed_at is None:  # answered while no process waited
        adopt_stop(migration)
        migration.journal.record(Facts(stop_confirmed_at=time.time()))
    return _put_on_all_hosts(migration, _sealed_facts(migration, migration.source_group.describe()))


def _refuse_started_since(migration: Migration) -> None:
    """Raise MidstreamError where a source has been started since the plan.

    As a requeued job, when the plan has its newest checkpoint. What it has saved since would be given up, and no
    one has agreed to that.
    """
    plan = migration.plan
    if plan.checkpoint != "now" and not ran_before(plan) and migration.journal.facts.sealing_attempt is None:
        raise MidstreamError(
            f"{plan.run_id} did not run on {plan.source} when this was planned ({plan.route.source_state}), and runs "
            f"again: what it does after {plan.checkpoint} would be given up",
            f"midstream --migrate {plan.run_id} --to {plan.target} begins with its present state",
        )


def seal_restored(migration: Migration) -> None:
    """Seal a source again whose disk was put back since this migration sealed it.

    A rollback then goes on as ever, from what is left there.

    Raises:
        MovedOnError: a later migration owns the run.
        MidstreamError: nothing is left there, or steps are given up and the user has not agreed to that.
    """
    plan, seal = migration.plan, migration.journal.facts.sealed or signed_seal(migration)
    if seal is None:
        return
    described = migration.source_group.describe()
    if described.fence is not None and described.fence.epoch >= plan.epoch:
        return
    refuse_later_owner(migration, returning=True)
    older = f"its copy of {plan.run_id} is older than this migration, restored perhaps, or its disk is not mounted"
    if described.fence is None or not described.usable:
        raise MidstreamError(
            f"{plan.source} shows no complete checkpoint: {older}",
            f"where its disk is back, midstream --continue {plan.migration} goes on; midstream --repair {plan.run_id} "
            f"--on {plan.target_host} shows what {plan.target_host} would go on with",
        )
    step = max(checkpoint.step for checkpoint in described.usable)
    if step < (seal.step or 0) and not migration.directory.losses_agreed():
        raise MidstreamError(
            f"{plan.source} shows step {step} of {plan.run_id}, and was sealed at step {seal.step}: {older}, and a "
            "rollback discards the steps in between",
            f"midstream --rollback {plan.migration} --yes accepts it",
        )
    _acquire(migration)
    _wait_for_leases(migration)
    _write_seal(migration, described, step)
    migration.note(f"{plan.source} is sealed again, at step {step}: {older}")


def sealed_already(migration: Migration) -> Sealed | None:
    """Return what this migration sealed the source with; None if it has not sealed it."""
    described = migration.source_group.describe()
    fence = _required_fence(migration, described)
    sealed = fence.epoch == migration.plan.epoch and fence.owner == migration.plan.target
    return _sealed_facts(migration, described) if sealed else None


def _put_on_all_hosts(migration: Migration, sealed: Sealed) -> Sealed:
    """Write the seal on every host of the source.

    A killed process has not written its own.
    """
    if len(migration.source_group.run_hosts) > 1:
        migration.source_group.put_fence(sealed.fence, migration.plan.migration)
    return sealed


def _required_fence(migration: Migration, described: RunDescription) -> records.Fence:
    """Return the source's fence. MidstreamError if it has none."""
    if described.fence is None:
        run_id = migration.plan.run_id
        raise MidstreamError(f"{migration.source.name}: run {run_id} has no fence", f"midstream --repair {run_id}")
    return described.fence


def _acquire(migration: Migration) -> records.Fence:
    """Acquire the migration lock. RemoteError names the owner if another one has it."""
    trainer = migration.plan.trainer
    seconds = LOCK_SECONDS + (2 * trainer.wait if trainer is not None else 0.0)
    return migration.source_group.acquire(
        migration.plan.migration, migration.plan.epoch, migration.plan.target, seconds
    )


def _stop(
    migration: Migration, described: RunDescription, streamed: StreamedCopy, at: int | None
) -> tuple[RunDescription, bool]:
    """Command the running engine to save and stop.

    Returns the run, and whether it sealed itself.

    If the migration starts from this save, the engine writes the fence itself, and its status is the acknowledgement.
    """
    plan, source, attempt = migration.plan, migration.source, described.attempt
    sealing = plan.checkpoint == "now"
    agreement = migration.journal.facts.agreement
    command = records.Command(
        records.STOP,
        epoch=plan.epoch if sealing else plan.source_epoch,
        owner=plan.target if sealing else "",
        migration=plan.migration,
        step=at,
        checkpoint=None if sealing or plan.trainer is None else plan.checkpoint,
        last_step_numbers=sealing and agreement is not None and agreement.last_step_numbers,
    )
    if migration.journal.facts.sealing_attempt != attempt or migration.journal.facts.stop_sequence is None:
        migration.journal.record(Facts(source_was_running=True, sealing_attempt=attempt, stop_commanded_at=time.time()))
    sequence = source.call(ownership.send_command)(
        root=source.root, run_id=plan.run_id, attempt=attempt, command=command.to_json()
    )
    migration.journal.record(Facts(stop_sequence=sequence))
    when = "" if at is None else f"at step {at}: "
    what = f"save, pass ownership {plan.epoch} to {plan.target}, stop" if sealing else "save, stop"
    shows = show_command(migration.source_paths, attempt)
    migration.log_command(source, f"command: {when}{what} (attempt {attempt})", shows=shows)

    answer = _await_answer(migration, attempt, sequence, described, streamed)
    migration.journal.record(Facts(stop_confirmed_at=time.time()))
    message = answer.status.message if answer.status else ""
    if answer.status is not None and answer.status.rejected >= sequence:
        raise MidstreamError(
            f"{source.name} cannot save the state to migrate: {message}",
            f"fix that on {source.name} and migrate again; the run keeps training",
        )
    reported = answer.described
    described = (
        migration.source_group.describe()
        if reported is None
        else migration.source_group.with_stored_checkpoints(reported)
    )
    if _required_fence(migration, described).epoch >= plan.epoch:
        # Whatever its process still writes belongs to an epoch that is sealed.
        return described, answer.migration_lock is not None and answer.migration_lock.migration == plan.migration
    migration.source_group.wait_exited(attempt)
    described = migration.source_group.describe()
    if answer.status is None or answer.status.acknowledged < sequence:
        # The engine exited before it read the command. No process runs, so the seal can be written from here.
        migration.note(
            f"the source ended by itself ({answer.state}{': ' + message if message else ''}); its last state counts"
        )
    return described, False


def _await_answer(
    migration: Migration, attempt: int, sequence: int, described: RunDescription, streamed: StreamedCopy
) -> Answer:
    """Wait for the source's answer.

    With a standby, the save is streamed to it while it is written.
    """
    plan, source = migration.plan, migration.source
    since = described.status.step if described.status else 0
    earlier = None
    # Shares of several hosts are collected after the save; objects of a bucket are copied with the checkpoint.
    single_host = len(migration.source_group.run_hosts) == 1 and not (
        plan.route.source_store or plan.route.target_store
    )
    rehearsal = migration.journal.facts.rehearsal
    repeats = plan.trainer is None  # objects of the same sizes in each checkpoint
    if (
        single_host
        and repeats
        and rehearsal
        and plan.has_standby
        and plan.checkpoint == "now"
        and not replayed(migration)
    ):
        earlier = host_files.read_manifest(migration.target, plan.run_id, rehearsal.name)
    try:
        return stream_until_answered(migration, attempt, sequence, since, earlier, streamed)
    except HostError as error:
        if isinstance(error, RemoteError):
            raise
        migration.note(f"{error.message}; waiting for its answer: losing contact is not losing the run")

    def answered(run: RunView) -> bool:
        if run.attempt != attempt:
            return run.attempt > attempt
        return run.status is not None and (
            run.state in records.ENDED or run.state == "lost" or run.status.rejected >= sequence
        )

    wait = plan.trainer.wait if plan.trainer is not None else 0.0
    run = wait_for(migration, "the source's acknowledgement of the stop", source.name, answered, SEAL_TIMEOUT + wait)
    return Answer(run.status, run.running)


def _seal_closed(migration: Migration, described: RunDescription) -> None:
    """Seal a stopped source at an existing checkpoint."""
    plan, source = migration.plan, migration.source
    _wait_for_leases(migration)
    usable = described.usable
    if plan.checkpoint != "now":
        usable = [checkpoint for checkpoint in usable if checkpoint.name == plan.checkpoint]
    if not usable:
        raise MidstreamError(
            f"{source.name} has no complete checkpoint to migrate", "midstream --checkpoints RUN shows what is there"
        )
    step = max(checkpoint.step for checkpoint in usable)
    seen = seen_step(migration)
    if plan.checkpoint == "now" and step < seen:
        raise MidstreamError(
            f"{source.name} shows step {step} of {plan.run_id}, and had step {seen}: the copy is an older one, "
            "restored perhaps, and later steps would be given up",
            f"put its disk back; or midstream --restart {plan.run_id} goes on from what is left",
        )
    damaged = [checkpoint for checkpoint in described.checkpoints if checkpoint.damaged and checkpoint.step > step]
    if plan.checkpoint == "now" and damaged:
        checkpoint = max(damaged, key=lambda checkpoint: checkpoint.step)
        raise MidstreamError(
            f"{source.name}: checkpoint {checkpoint.name} is damaged: {checkpoint.damaged}",
            f"roll back, and migrate again with --checkpoint {step}, which starts from the newest complete one",
        )
    _write_seal(migration, described, step)


def _wait_for_leases(migration: Migration) -> None:
    for host in migration.source_group.run_hosts:
        wait_for_lease(host, migration.plan.run_id, migration.note)


def _write_seal(migration: Migration, described: RunDescription, step: int) -> None:
    """Write the fence of a source that has stopped."""
    plan = migration.plan
    migration.source_group.end_trainer(described.attempt)
    migration.source_group.seal(plan.migration, plan.epoch, plan.target, step)
    shows = show_fence(migration.source_paths)
    migration.log_command(
        migration.source,
        f"fence: ownership {plan.epoch}, owner {plan.target}; earlier owners count up to step {step}",
        shows=shows,
    )


def _started_from(migration: Migration, fence: records.Fence) -> records.LineageEntry | None:
    """Return the target's first start, where a signed record has its root digest.

    A bucket may not have the sealed checkpoint any more: another process has completed the migration.
    """
    plan, signed, lineage = migration.plan, signed_seal(migration), migration.target_group.describe().lineage
    for entry in lineage.entries if lineage is not None else ():
        same = (entry.migration, entry.epoch, entry.first_step) == (plan.migration, plan.epoch, fence.sealed_step)
        if same and signed is not None and (signed.step, signed.root_digest) == (entry.first_step, entry.root_digest):
            return entry
    return None


def _sealed_facts(migration: Migration, described: RunDescription) -> Sealed:
    """Return the seal on the source's disk: fence and newest checkpoint it accepts."""
    plan, source = migration.plan, migration.source
    fence = _required_fence(migration, described)
    if fence.epoch != plan.epoch or fence.owner != plan.target or fence.sealed_step is None:
        raise MidstreamError(f"{source.name} stopped without passing on ownership {plan.epoch}", "plan again")
    checkpoints = [p for p in described.checkpoints if p.complete and p.step == fence.sealed_step]
    if plan.checkpoint != "now":
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint.name == plan.checkpoint]
    if not checkpoints and (started := _started_from(migration, fence)) is not None:
        return Sealed(fence.sealed_step, started.checkpoint or "", started.root_digest or "", described.attempt, fence)
    if not checkpoints:
        raise MidstreamError(
            f"the fence on {source.name} ends the source at step {fence.sealed_step}, "
            "which has no complete checkpoint there",
            "midstream --checkpoints RUN shows what is there",
        )
    checkpoint = max(checkpoints, key=lambda checkpoint: checkpoint.attempt)
    return Sealed(
        step=checkpoint.step,
        checkpoint=checkpoint.name,
        root_digest=checkpoint.root_digest,
        attempt=max(described.attempt, checkpoint.attempt),  # a bucket may have what a later attempt saved
        fence=fence,
        bytes=checkpoint.size,
    )
