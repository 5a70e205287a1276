"""Execution of a migration's phases, each journaled before and after.

A failure rolls them back.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from typing import Any

from midstream.errors import ConnectionLostError, Exit, HostError, MidstreamError
from midstream.hosts.reconnect import MIGRATION, Reconnect
from midstream.migrate import stages
from midstream.migrate.host_group import HostGroup
from midstream.migrate.journal import migration_state, phase_names, stage_times
from midstream.migrate.journal.facts import required
from midstream.migrate.journal.journal import WITHDRAWN, JournalError, begun_rollback, outcome, read_events
from midstream.migrate.journal_recovery import BEHIND, is_behind
from midstream.migrate.phases import phases
from midstream.migrate.phases.certify import NotProvenError
from midstream.migrate.phases.rollback import Rollback
from midstream.migrate.steps.migration import (
    Migration,
    MovedOnError,
    NeedsOperatorError,
    Phase,
    RollbackRequested,
    ways_to_continue,
)
from midstream.migrate.steps.preemption import PreemptedError, provider_of
from midstream.migrate.steps.rollback_outcome import ran_before
from midstream.migrate.steps.target_progress import TargetTrainsError, shown_step

ROLLBACK_REQUESTED = "requested by the user"
MAX_DISCONNECTS = 12  # in one phase, each within DISCONNECT_WINDOW seconds of the one before
DISCONNECT_WINDOW = 300.0  # seconds without a disconnect after which the count starts at zero


def execute(migration: Migration, *, rollback: bool = False) -> Exit:
    """Execute the migration from its journaled state to its end; return the exit code."""
    with contextlib.closing(migration.prepared_calls):  # where it fails, some are left
        return _execute(migration, rollback)


def _execute(migration: Migration, rollback: bool) -> Exit:
    events = read_events(migration.directory.journal_file)
    state = outcome(events)
    if state.ended:  # another process has completed it
        return _result(migration, Exit(state.exit_code), state.outcome, state.error)
    done = {event.phase for event in events if event.event == "phase" and event.state == phase_names.DONE}
    begun = begun_rollback(events)
    if begun is not None:
        return _roll_back(migration, begun.message, Exit(begun.detail.get("exit_code", Exit.FAILED)))
    if rollback or migration.directory.rollback_requested():
        return _roll_back(migration, ROLLBACK_REQUESTED, Exit.DONE)
    try:
        migration.source_group.connect()
        migration.target_group.connect()
    except HostError as error:  # nothing was done yet, so there is nothing to roll back
        line = f"{error}; midstream --continue {migration.plan.migration} continues it when it answers"
        return _result(migration, Exit.INTERRUPTED, migration_state.INTERRUPTED, line)
    for phase in phases():
        if phase.name in done and not _needs_rerun(migration, phase):
            continue
        try:
            _run(migration, phase)
        except RollbackRequested:
            return _roll_back(migration, ROLLBACK_REQUESTED, Exit.DONE)
        except NeedsOperatorError as error:
            return _result(migration, Exit.INTERRUPTED, migration_state.INTERRUPTED, str(error))
        except JournalError:
            raise  # without a journal neither the next phase nor a rollback may run
        except Exception as error:  # noqa: BLE001 - after any error the run has to continue
            message = str(error) if isinstance(error, MidstreamError) else _journal_traceback(migration, error)
            _journal_failure(migration, phase.name, message)
            facts = migration.journal.facts
            # A certified run trains on the target, and a rollback would lose its steps since. A damaged journal may
            # have lost the line that says it is certified.
            # So would it where this machine alone has failed: its full disk says nothing about the target.
            trains = phase_names.CERTIFY in done or (facts.reestablished_at is not None and facts.sealed is not None)
            if not trains and is_behind(migration):  # a process with a copy of the journal has started the target
                line = f"{message}; {BEHIND}; midstream --continue {migration.plan.migration} continues it from there"
                return _result(migration, Exit.INTERRUPTED, migration_state.INTERRUPTED, line)
            certified = getattr(error, "code", Exit.FAILED) != Exit.NOT_CERTIFIED
            # A preempted target has lost what it had; its provider reports that.
            failed = (certified or isinstance(error, NotProvenError)) and not isinstance(error, PreemptedError)
            if trains or (facts.relaunching and (_is_of_this_machine(error) or (failed and _may_go_on(migration)))):
                return _result(
                    migration,
                    Exit.INTERRUPTED,
                    migration_state.INTERRUPTED,
                    f"{message} ({ways_to_continue(migration)})",
                )
            return _roll_back(migration, message, Exit.FAILED if certified else Exit.NOT_CERTIFIED)
        done.add(phase.name)
    return _complete(migration)


def _complete(migration: Migration) -> Exit:
    """Write that the migration is completed.

    A rollback that was requested too late is withdrawn. The command that requested it says so
    (`migration_process.refuse_finished`).
    """
    migration.directory.withdraw_request()  # before the result: a process killed after it leaves none behind
    code = _result(migration, Exit.DONE, migration_state.COMPLETED, "")
    migration.directory.withdraw_request()  # one that came in between
    return code


def _needs_rerun(migration: Migration, phase: Phase) -> bool:
    """Return whether a phase that is done has to run again.

    Relaunch runs on every continuation: the target may have failed since. Certify runs if the certificate cannot be
    read, from the evidence on the hosts.
    """
    lost = phase.name == phase_names.CERTIFY and migration.directory.certificate() is None
    return phase.name == phase_names.RELAUNCH or lost


def _run(migration: Migration, phase: Phase) -> None:
    migration.phase = phase.name
    migration.check_requests()
    migration.journal.write("phase", phase=phase.name, state=phase_names.STARTED)
    stage = {phase_names.CERTIFY: stages.CERTIFY, phase_names.FINISH: stages.HEALTHY}.get(phase.name)
    with migration.stage(stage) if stage is not None else contextlib.nullcontext():
        _run_with_reconnects(migration, phase)
    migration.journal.write("phase", phase=phase.name, state=phase_names.DONE)


def _run_with_reconnects(migration: Migration, phase: Phase) -> None:
    """Run the phase; after a lost connection, reconnect and run it again.

    The second run continues the phase.

    Raises:
        PreemptedError: the provider of an unreachable host reports that it was preempted.
        MidstreamError: `_contact_lost`, if a host stays unreachable or is disconnected too often.
    """
    disconnects, source, target = (
        0,
        provider_of(migration, migration.source_group),
        provider_of(migration, migration.target_group),
    )
    while True:
        began = time.monotonic()
        try:
            return phase.run(migration)
        except MIGRATION.lost as error:
            # A connection that failed, although both hosts answer again, says nothing about a target that may train.
            failed_once = migration.journal.facts.relaunching and type(error) is HostError
            if not isinstance(error, ConnectionLostError) and not failed_once and _all_reachable(migration):
                raise  # both hosts answer, so the connection is not the cause
            disconnects = 1 if time.monotonic() - began > DISCONNECT_WINDOW else disconnects + 1
            if disconnects > MAX_DISCONNECTS:
                raise _contact_lost(migration, phase, error) from error
            migration.note(f"{error.message}; connecting again: losing contact is not losing the run")
            reconnect = Reconnect(MIGRATION)
            while not _all_reachable(migration):
                migration.check_requests()
                if phase.name != phase_names.ROLLBACK:
                    target.check()
                    if migration.journal.facts.sealed is None:  # a sealed run can be migrated without the source
                        source.check()
                if reconnect.exhausted():
                    raise _contact_lost(migration, phase, error) from error
                time.sleep(reconnect.delay())


def _contact_lost(migration: Migration, phase: Phase, error: HostError) -> MidstreamError:
    """Return the error of a phase that lost contact with a host for good.

    An unreachable host proves nothing, so the migration waits for the user, with one exception: the run is sealed and
    no engine was started on the target. Then the journal is the evidence that nothing trains, and the run returns to
    its source, if that answers.
    """
    facts = migration.journal.facts
    if phase.name == phase_names.ROLLBACK:
        return error
    if facts.sealed is not None and not facts.relaunching and _reachable(migration.source_group):
        return error
    plan = migration.plan
    if facts.sealed is not None:
        state = f"{plan.run_id} was stopped at step {facts.sealed.step} for good, and {plan.target} may be training it"
    elif facts.stop_commanded_at is not None:
        state = f"{plan.source} was commanded to stop, and whether it has stopped is not known"
    else:
        state = f"{plan.run_id} was not commanded to stop, and stays on {plan.source}"
    ways = f"midstream --continue {plan.migration} continues it when the host answers"
    if phase.name == phase_names.FINISH:  # the run is certified: a rollback loses its steps since
        step = required(facts.sealed, "sealed").step
        ways += f", midstream --rollback {plan.migration} --yes goes back to step {step} on {plan.source}"
    return NeedsOperatorError(f"{error.message}; {state}", ways)


def _all_reachable(migration: Migration) -> bool:
    return _reachable(migration.source_group) and _reachable(migration.target_group)


def _reachable(group: HostGroup) -> bool:
    try:
        group.connect()
    except MIGRATION.lost:
        return False
    return True


def _may_go_on(migration: Migration) -> bool:
    """Return whether the target may have done steps, which a rollback gives up.

    Only an answer that shows none says no.
    """
    sealed = migration.journal.facts.sealed
    try:
        return sealed is None or shown_step(migration) > sealed.step  # None: lost with the journal's lines
    except MidstreamError:
        return True


def _is_of_this_machine(error: Exception) -> bool:
    """Return whether a file of this machine, not one of a host, caused an error."""
    cause = error.__cause__ if isinstance(error, MidstreamError) and not isinstance(error, HostError) else error
    return isinstance(cause, OSError)


def _journal_failure(migration: Migration, phase: str, message: str) -> None:
    migration.journal.write("phase", phase=phase, state=phase_names.FAILED, message=message)


def _journal_traceback(migration: Migration, error: Exception) -> str:
    """Return one line for an unexpected error; its traceback goes to the journal."""
    migration.journal.write("trace", phase=migration.phase, message=traceback.format_exc())
    return f"{type(error).__name__}: {error}"


def _roll_back(migration: Migration, why: str, code: Exit) -> Exit:
    """Roll back to the source.

    If that cannot be completed now, the migration stays open and the result has the command that continues it. ``code``
    is journaled: the process that completes the rollback exits with it. Where no user has requested it and the target
    shows steps, it is withdrawn, and the migration may go on.
    """
    migration.phase = phase_names.ROLLBACK
    migration.gives_up = code != Exit.FAILED
    migration.clock.abandon()
    migration.journal.write(
        "phase", phase=phase_names.ROLLBACK, state=phase_names.STARTED, message=why, exit_code=int(code)
    )
    migration.prepared_calls.close()  # what they would do is not done now
    plan, rollback = migration.plan, Rollback()
    line = plan.own_command("--rollback", plan.migration, "--yes")
    migration.log_own_command(f"return {plan.run_id} to {plan.source}", line)
    try:
        _run_with_reconnects(migration, rollback)
    except MovedOnError as error:  # a later migration owns the run
        _journal_failure(migration, phase_names.ROLLBACK, error.message)
        return moved_on(migration, error)
    except TargetTrainsError as error:  # nothing was undone, and each continuation begins with this phase
        migration.directory.withdraw_request()
        migration.journal.write(
            "note", phase=phase_names.RELAUNCH, state=WITHDRAWN, message="the rollback is withdrawn"
        )
        return _result(migration, Exit.INTERRUPTED, migration_state.INTERRUPTED, f"{why}; {error}")
    except JournalError:
        raise
    except Exception as error:  # noqa: BLE001 - after any error the rollback has to be completed later
        message = str(error) if isinstance(error, MidstreamError) else _journal_traceback(migration, error)
        _journal_failure(migration, phase_names.ROLLBACK, message)
        line = f"{message}; midstream --continue {migration.plan.migration} continues the rollback"
        return _result(migration, Exit.INTERRUPTED, migration_state.ROLLBACK_INCOMPLETE, line)
    migration.directory.withdraw_request()
    migration.journal.write("phase", phase=phase_names.ROLLBACK, state=phase_names.DONE)
    message = why if code != Exit.DONE else "rolled back as requested"
    if not_running := migration.journal.facts.not_running:
        message = f"{message}; {not_running}"
        code = Exit.NOT_RUNNING if ran_before(migration.plan) else code
    return _result(migration, code, migration_state.ROLLED_BACK, message)


def moved_on(migration: Migration, error: MovedOnError) -> Exit:
    """End a migration whose run belongs to a later one; return the exit code."""
    migration.directory.withdraw_request()
    return _result(migration, Exit.FAILED, migration_state.MOVED_ON, f"{error.message} ({error.hint})")


def _result(migration: Migration, code: Exit, outcome: str, message: str) -> Exit:
    """Write the result, the last line of journal and ``--json``; return ``code``."""
    certificate, report = migration.directory.certificate(), migration.directory.downtime()
    events = read_events(migration.directory.journal_file)
    detail: dict[str, Any] = {
        "ok": code == Exit.DONE,
        "exit_code": int(code),
        "outcome": outcome,
        "migration": migration.plan.migration,
        "run": migration.plan.run_id,
        "certificate": certificate.to_json() if certificate else None,
        "downtime": report.to_json() if report else None,
        "duration": stage_times.report(migration.plan, stage_times.stage_times(events)),
    }
    migration.journal.write("result", message=message, **detail)
    return code
