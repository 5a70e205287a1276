"""The standby, a compiled and rehearsed attempt on the target: start, wait, end.

The standby waits for the state while the source trains. Before the takeover command it has no part in the run, so it
may be ended or replaced at any time. Its status has epoch 0 until it has a state, which distinguishes it from a
training attempt.
"""

from __future__ import annotations

import time

from midstream.errors import ConnectionLostError, HostError, MidstreamError
from midstream.hosts.deadline import RECONNECT_STEP, Deadline
from midstream.hosts.reconnect import ONE_TRY, Reconnect, ReconnectPolicy
from midstream.install.errors import LaunchError
from midstream.migrate import stages
from midstream.migrate.journal.facts import Copied, Facts, Sealed, StartingPoint
from midstream.migrate.source_config import agreed_config
from midstream.migrate.steps import estimate_update
from midstream.migrate.steps.attempt_start import start_attempt
from midstream.migrate.steps.awaited_attempt import check_can_wait
from midstream.migrate.steps.data_copy import copy_further_caches
from midstream.migrate.steps.first_checkpoint import request_save
from midstream.migrate.steps.migration import Migration, NeedsOperatorError, replayed
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.ownership_records import chain_of_target
from midstream.migrate.steps.pins import pin, pin_expires
from midstream.migrate.steps.queue_wait import check_devices, wait_in_queue
from midstream.migrate.steps.record_commands import show_command, show_log
from midstream.migrate.steps.streamed_copy import copy_checkpoint
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.runs import ownership, run_state, standby_state

READY_TIMEOUT = 3600.0  # seconds: import, compile and rehearse a large model
ANSWER_TIMEOUT = 300.0  # seconds to answer a command: the process may be stopped, or its host swap
ANSWER_CALL = 20.0  # seconds of these that the call waits that sends the command
ANSWER_PATIENCE = 2.0  # and each later call for the answer
STOP_TIMEOUT = 20.0  # seconds for a standby to stop before it is killed
STAGES_BY_STATE = {records.COMPILING: stages.COMPILE, records.RESTORING: stages.REHEARSE}


def ensure(migration: Migration) -> int:
    """Return the target's standby number once it is ready; start one if none runs.

    Raises:
        MidstreamError: the rehearsal failed on the target; the message has its last log line.
    """
    number = adopt_standby(migration)
    if number is None:
        if migration.journal.facts.standby_attempt is not None:
            migration.note("the standby on the target has exited; starting another one")
            end_standby(migration)  # a process of it may take longer
        with migration.stage(stages.CHECKPOINT):
            starting_point = copy_rehearsal(migration)
            copy_further_caches(migration, starting_point.name)
        migration.clock.begin(stages.START, migration.phase)
        number = _start(migration, starting_point)
        migration.journal.record(Facts(standby_attempt=number))
    return _wait_ready(migration, number)


def running_standby(migration: Migration) -> int | None:
    """Return the attempt number of the standby that runs; None without one."""
    attempt = newest_attempt(migration)
    return attempt.attempt if attempt and attempt.running and is_standby(attempt) else None


def adopt_standby(migration: Migration) -> int | None:
    """Return the number of the standby that runs, and journal it; None without one.

    The process that started it may have been killed, or have lost the answer, before it journaled the number.
    """
    number = running_standby(migration)
    if number is not None and migration.journal.facts.standby_attempt != number:
        migration.journal.record(Facts(standby_attempt=number))
        migration.note(f"attempt {number} of this migration runs on {migration.plan.target} already, as a standby")
    return number


def newest_attempt(migration: Migration) -> run_state.MigrationAttempt | None:
    """Return the newest attempt of this migration on the target; None without one."""
    return migration.target_group.attempt_of_migration(migration.plan.migration)


def is_standby(attempt: run_state.MigrationAttempt) -> bool:
    """Return whether an attempt has no part in the run yet.

    Before its first status, its first command decides.
    """
    if attempt.status is None:
        return attempt.action in records.STANDBYS
    return attempt.status.epoch == 0 and attempt.status.state not in records.ENDED


def _exiting_attempt(migration: Migration) -> int | None:
    """Return the attempt that has ended, while a process of it runs; else None.

    By its status, after a failure or without a part in the run: what has trained may be saving.
    """
    attempt = newest_attempt(migration)
    if attempt is None or attempt.status is None or not attempt.running:
        return None
    status = attempt.status
    ended = status.state == records.FAILED or (status.state in records.ENDED and status.epoch == 0)
    return attempt.attempt if ended else None


# ------------------------------------------------------------------------------------------ preparation


def copy_rehearsal(migration: Migration) -> StartingPoint:
    """Copy the checkpoint to rehearse on to the target, and return it.

    The checkpoint is the one to migrate if that exists, else the newest. A run without any is commanded to save.
    """
    journaled = migration.journal.facts.rehearsal
    starting_point = journaled or _choose(migration)
    name = starting_point.name
    pin(migration, name)
    began = time.monotonic()
    sent = copy_checkpoint(migration, name, "an earlier checkpoint")
    if migration.journal.facts.rehearsal_copy is None and sent:
        migration.journal.record(Facts(rehearsal_copy=Copied(sent, time.monotonic() - began)))
    if journaled is None:
        migration.journal.record(Facts(rehearsal=starting_point))
    return starting_point


def _choose(migration: Migration) -> StartingPoint:
    """Choose and pin the checkpoint to rehearse on.

    Retention would replace it by the next.
    """
    plan, source = migration.plan, migration.source

    def pinned() -> ListedCheckpoint | None:
        name = "" if plan.checkpoint == "now" else plan.checkpoint
        return migration.source_group.checkpoint_store.pin_newest(plan.migration, pin_expires(migration), name)

    pinned_checkpoint = pinned()
    if pinned_checkpoint is None:
        request_save(migration)
        pinned_checkpoint = pinned()
    if pinned_checkpoint is None:
        raise MidstreamError(
            f"{source.name} has no complete checkpoint to rehearse on",
            "midstream --checkpoints RUN shows what is there",
        )
    return StartingPoint(pinned_checkpoint.name, pinned_checkpoint.step, pinned_checkpoint.root_digest)


def _start(migration: Migration, rehearsal: StartingPoint) -> int:
    plan = migration.plan
    migration.target_group.put_config(agreed_config(migration.source, plan))
    described = migration.source_group.describe()
    command = records.Command(
        records.REPLAY if replayed(migration) else records.STANDBY,
        epoch=plan.epoch,
        checkpoint=rehearsal.name,
        root_digest=rehearsal.root_digest,
        step=rehearsal.step,
        migration=plan.migration,
    )
    saved = [checkpoint.attempt for checkpoint in described.checkpoints]
    # A process of the last standby may run where the target's directory was put back, and the number is free again.
    before = migration.journal.facts.standby_attempt or 0
    at_least = max([described.attempt, *described.attempts, *saved, before]) + 1
    return start_attempt(migration, migration.target_group, command, owner=plan.target, at_least=at_least)


def _wait_ready(migration: Migration, number: int) -> int:
    ready = (records.WAITING, records.REPLAYING)

    def decided(run: RunView) -> bool:
        if run.attempt != number:
            return False
        if run.state in STAGES_BY_STATE and migration.clock.current:
            migration.clock.begin(STAGES_BY_STATE[run.state], migration.phase)
        return run.state in ready or run.state in records.ENDED or run.state == "lost"

    group = migration.target_group
    wait_in_queue(migration, group, number)
    run = wait_for(
        migration,
        "the target's rehearsal",
        migration.plan.target_host,
        decided,
        READY_TIMEOUT,
        lambda: check_can_wait(migration, group, number),
    )
    migration.clock.end(migration.phase)
    if run.state not in ready or run.status is None:
        why = group.why_ended(number, run)
        raise MidstreamError(
            f"the rehearsal on {migration.plan.target} failed ({run.state}): {why}",
            f"its log: {migration.plan.target_host}:{migration.target_paths.attempt(number).log()}",
        )
    if migration.journal.facts.rehearsed_step_seconds is None:
        check_devices(migration, group, run.status)
        migration.journal.record(Facts(rehearsed_step_seconds=run.status.rehearsed_seconds))
        migration.note(
            f"rehearsed on {migration.plan.target_host}: {run.status.rehearsed_seconds:.3f} s a step; it waits"
        )
        estimate_update.update_estimate(migration)
    return number


# ------------------------------------------------------------------------------------------ takeover


def take_over(migration: Migration, command: records.Command, sealed: Sealed) -> int | None:
    """Send the standby the sealed fence and ``command`` in one call.

    Returns the standby's number. None, after a note of the reason, if no standby took the run over and a new
    attempt has to be started.
    """
    number = migration.journal.facts.standby_attempt or adopt_standby(migration)
    if number is None:
        return None
    if number <= sealed.attempt:
        migration.note(f"attempt {number} was started on the source since: the standby is replaced")
        end_standby(migration)
        return None
    if migration.journal.facts.relaunch_started_at is None:
        migration.journal.record(Facts(relaunch_started_at=time.time()))
    target = migration.target
    if (
        len(migration.target_group.run_hosts) > 1
    ):  # the other hosts' fences have to accept the epoch before process 0 starts
        migration.target_group.put_fence(sealed.fence, migration.plan.migration, chain_of_target(migration))
    while True:
        report = migration.prepared_calls.call(target, standby_state.take_over, timeout=3 * ANSWER_CALL)(
            root=target.root,
            run_id=migration.plan.run_id,
            attempt=number,
            fence=sealed.fence.to_json(),
            command=command.to_json(),
            patience=ANSWER_CALL,
            chain=chain_of_target(migration).to_json(),
        )
        if report.outcome != "not ready":
            break
        try:
            _wait_ready(migration, number)
        except (ConnectionLostError, NeedsOperatorError):  # the standby may still wait there
            raise
        except MidstreamError as error:
            migration.note(f"{error}; a new attempt is started there")
            end_standby(migration)
            return None
    if report.outcome == "exited":
        if adopt_standby(migration) not in (None, number):  # a later one, whose start was not journaled
            return take_over(migration, command, sealed)
        migration.note(f"standby attempt {number} has exited: a new attempt is started there")
        end_standby(migration)  # a process of it may take longer
        return None
    migration.log_command(
        target,
        f"command: {command.action} {command.checkpoint} (attempt {number})",
        shows=show_command(migration.target_paths, number),
    )
    if report.outcome == "sent before":  # by a call whose answer was lost, or a process that was killed
        return number
    status, _ = _answer(migration, number, report.sequence, report.status)
    accepted = status is not None and status.acknowledged >= report.sequence
    if accepted and status is not None and status.state not in (records.STOPPED, records.FAILED):
        return number
    why = status.message if status is not None else "no status"
    migration.note(f"attempt {number} did not take the run over ({why}): a new attempt is started there")
    end_standby(migration)
    return None


def restore_command(migration: Migration, starting_point: StartingPoint) -> records.Command:
    """Return the command to restore ``starting_point`` and train."""
    return _command_at(migration, records.RESTORE, starting_point)


def promote_command(migration: Migration, starting_point: StartingPoint) -> records.Command:
    """Return the command to a replica to become the run at ``starting_point``."""
    return _command_at(migration, records.PROMOTE, starting_point)


def _command_at(migration: Migration, action: str, starting_point: StartingPoint) -> records.Command:
    return records.Command(
        action,
        epoch=migration.plan.epoch,
        checkpoint=starting_point.name,
        root_digest=starting_point.root_digest,
        step=starting_point.step,
        migration=migration.plan.migration,
    )


def send_and_wait(migration: Migration, number: int, command: records.Command) -> tuple[int, records.Status | None]:
    """Send the standby a command; return its sequence and the status that answers it.

    The answer is an acknowledgement, a rejection or the standby's exit.

    Raises:
        MidstreamError: no answer within `ANSWER_TIMEOUT`.
    """
    target, run_id = migration.target, migration.plan.run_id
    sequence = target.call(ownership.send_command)(
        root=target.root, run_id=run_id, attempt=number, command=command.to_json()
    )
    status, answered = _answer(migration, number, sequence, None)
    if not answered:
        raise MidstreamError(
            f"attempt {number} on {target.name} does not answer", f"midstream --status shows what {target.name} does"
        )
    return sequence, status


def _answer(
    migration: Migration, number: int, sequence: int, status: records.Status | None
) -> tuple[records.Status | None, bool]:
    """Return the attempt's status and whether it answered command ``sequence``.

    An attempt answers by carrying the command out, rejecting it or exiting. ``status`` is the last one that its host
    reported; `ANSWER_TIMEOUT` bounds the wait.
    """
    target, deadline, answered = migration.target, Deadline(ANSWER_TIMEOUT, RECONNECT_STEP), False
    while not answered and not deadline.count():
        migration.check_requests()
        answer = target.call(standby_state.await_answer)(
            root=target.root, run_id=migration.plan.run_id, attempt=number, sequence=sequence, patience=ANSWER_PATIENCE
        )
        status, answered = answer.status, answer.answered
    return status, answered


def end_standby(migration: Migration) -> None:
    """End the standby, which has nothing to save, if one runs.

    Also one that has ended, while a process of it takes longer to exit: the target would refuse another attempt.
    """
    number = adopt_standby(migration)  # journaled: the source's next attempt gets a higher number
    if number is None:
        number = _exiting_attempt(migration)
    if number is None:
        return
    migration.log_command(
        migration.target,
        f"end attempt {number} on {migration.plan.target}: it is a standby",
        shows=show_log(migration.target_paths, number),
    )
    try:
        migration.target_group.stop(number, STOP_TIMEOUT)
    except LaunchError:
        migration.target_group.kill(number)


def end_standby_if_reachable(migration: Migration, policy: ReconnectPolicy[HostError] = ONE_TRY) -> bool:
    """End the standby, reconnecting by ``policy``; False if it is unreachable.

    If its host is unreachable, a note says what ends the standby there.
    """
    if migration.journal.facts.standby_attempt is None and not migration.plan.has_standby:
        return True
    reconnect = Reconnect(policy)
    while True:
        try:
            end_standby(migration)
            return True
        except policy.lost as error:
            if not reconnect.exhausted():
                time.sleep(reconnect.delay())
                continue
            migration.note(
                f"{error.message}; an attempt that still waits on {migration.plan.target_host} never trains and "
                "exits when its lease expires; kill it there to free the accelerators sooner"
            )
            return False
