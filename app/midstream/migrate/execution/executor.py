"""Carries a migration out: phase after phase, each journaled before and after; rolls back when one fails."""

from __future__ import annotations

import time
import traceback
from typing import Any

from midstream.errors import Exit, HostError, LostContact, MidstreamError
from midstream.hosts.deadline import REACHING_STEP, Deadline
from midstream.migrate import model
from midstream.migrate.execution.journal import REESTABLISHED, JournalError, outcome, read_events
from midstream.migrate.execution.migration import Migration, MovedOn, NeedsOperator, Phase, RollbackRequested, ways_on
from midstream.migrate.host_group import HostGroup
from midstream.migrate.phases import phases
from midstream.migrate.phases.rollback import Rollback

ASKED = "a person asked for it"
CUTS = 12  # of a connection in one phase, each within STEADY seconds of the one before
STEADY = 300.0  # seconds without a cut after which they are counted from the beginning
RECONNECT = 600.0  # seconds, of this process' own time, that a lost connection is tried again
PAUSE = 1.0  # seconds between two tries


def execute(move: Migration, *, rollback: bool = False) -> Exit:
    """From wherever the journal says the migration stands to its end. Returns the exit code of the command line."""
    events = read_events(move.directory.journal_file)
    state = outcome(events)
    if state.ended:  # another process was quicker
        return _result(move, Exit(state.exit_code), state.outcome, state.error)
    done = {event.phase for event in events if event.event == "phase" and event.state == model.DONE}
    begun = next((e for e in events if e.event == "phase" and e.phase == model.ROLLBACK), None)
    if begun is not None:
        return _roll_back(move, begun.message, Exit(begun.detail.get("exit_code", Exit.FAILED)))
    if rollback or move.directory.rollback_requested():
        return _roll_back(move, ASKED, Exit.DONE)
    try:
        move.source_group.connect()
        move.target_group.connect()
    except HostError as error:  # nothing was done yet, and nothing has to be undone for that
        line = f"{error}; midstream --continue {move.plan.migration} goes on when it answers"
        return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, line)
    for phase in phases():
        if phase.name in done and not _again(move, phase):
            continue
        try:
            _run(move, phase)
        except RollbackRequested:
            return _roll_back(move, ASKED, Exit.DONE)
        except NeedsOperator as error:
            return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, str(error))
        except JournalError:
            raise  # what cannot be written down is not done: neither the next phase nor a rollback
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the run has to go on
            message = str(error) if isinstance(error, MidstreamError) else _trace(move, error)
            _failed(move, phase.name, message)
            known = move.journal.known
            # The run goes on there, and what it has done since is not ours to give up. A journal that was damaged may
            # have lost that it was certified.
            if model.CERTIFY in done or (known(REESTABLISHED) is not None and known("sealed") is not None):
                return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, f"{message} ({ways_on(move)})")
            certified = getattr(error, "code", Exit.FAILED) != Exit.NOT_CERTIFIED
            return _roll_back(move, message, Exit.FAILED if certified else Exit.NOT_CERTIFIED)
        done.add(phase.name)
    return _result(move, Exit.DONE, model.COMPLETED, "")


def _again(move: Migration, phase: Phase) -> bool:
    """Relaunch is looked at again on every continuation: the target may have died since. A certificate that cannot be
    read any more is made again, from the evidence on the hosts."""
    lost = phase.name == model.CERTIFY and move.directory.certificate() is None
    return phase.name == model.RELAUNCH or lost


def _run(move: Migration, phase: Phase) -> None:
    move.phase = phase.name
    move.check_requests()
    move.journal.write("phase", phase=phase.name, state=model.STARTED)
    _patiently(move, phase)
    move.journal.write("phase", phase=phase.name, state=model.DONE)


def _patiently(move: Migration, phase: Phase) -> None:
    """Run the phase; where a connection is cut, connect again and run the phase again, which goes on where it was.
    TakenBack where the provider of a silent host says that it never comes back. Where a host does not come back in
    time, or the link is cut again and again, `_silence` says what that is."""
    cuts, source, target = 0, move.provider_of(move.source_group), move.provider_of(move.target_group)
    while True:
        began = time.monotonic()
        try:
            return phase.run(move)
        except HostError as error:
            if not isinstance(error, LostContact) and _connected(move):
                raise  # it answers: what is wrong there is not the connection
            cuts = 1 if time.monotonic() - began > STEADY else cuts + 1
            if cuts > CUTS:
                raise _silence(move, phase, error) from error
            move.note(f"{error.message}; connecting again: losing contact is not losing the run")
            deadline = Deadline(RECONNECT, REACHING_STEP)
            while not _connected(move):
                move.check_requests()
                if phase.name != model.ROLLBACK:
                    target.check()
                    if move.journal.known("sealed") is None:  # later the move can do without it
                        source.check()
                if deadline.count():
                    raise _silence(move, phase, error) from error
                time.sleep(PAUSE)


def _silence(move: Migration, phase: Phase, error: HostError) -> MidstreamError:
    """What a phase ends with, where contact is lost for good. Silence proves nothing, so the move waits for a person,
    with one exception: a run that is sealed, and of which no engine was started on the target, stands still. There the
    journal is the evidence that nothing trains, and the run goes back to its source, if that answers."""
    known = move.journal.known
    if phase.name == model.ROLLBACK:
        return error
    if known("sealed") is not None and not known("relaunching") and _reachable(move.source_group):
        return error
    plan = move.plan
    if known("sealed") is not None:
        state = f"{plan.run_id} is sealed at step {known('sealed')['step']}, and {plan.target} may be training it"
    elif known("ordered") is not None:
        state = f"{plan.source} was ordered to stop, and whether it has stopped is not known"
    else:
        state = f"{plan.run_id} was not ordered to stop, and stays on {plan.source}"
    ways = f"midstream --continue {plan.migration} goes on when the host answers"
    if phase.name == model.FINISH:  # the run is certified: the other way gives up what it has done since
        step = known("sealed")["step"]
        ways += f", midstream --rollback {plan.migration} --yes goes back to step {step} on {plan.source}"
    return NeedsOperator(f"{error.message}; {state}", ways)


def _connected(move: Migration) -> bool:
    return _reachable(move.source_group) and _reachable(move.target_group)


def _reachable(side: HostGroup) -> bool:
    try:
        side.connect()
    except HostError:
        return False
    return True


def _failed(move: Migration, phase: str, message: str) -> None:
    move.journal.write("phase", phase=phase, state=model.FAILED, message=message)


def _trace(move: Migration, error: Exception) -> str:
    """One line for an error that nobody foresaw; where it came from is in the journal."""
    move.journal.write("trace", phase=move.phase, message=traceback.format_exc())
    return f"{type(error).__name__}: {error}"


def _roll_back(move: Migration, why: str, code: Exit) -> Exit:
    """Back to the source. Where that cannot be completed now, the migration stays open and says how it goes on.
    ``code`` is journaled: whoever completes the rollback ends with it."""
    move.phase = model.ROLLBACK
    move.journal.write("phase", phase=model.ROLLBACK, state=model.STARTED, message=why, exit_code=int(code))
    rollback = Rollback()
    try:
        _patiently(move, rollback)
    except MovedOn as error:  # whoever moved it on has the run; what this migration held of it is not its own any more
        _failed(move, model.ROLLBACK, error.message)
        move.directory.withdraw_request()
        return _result(move, Exit.FAILED, model.MOVED_ON, f"{error.message} ({error.hint})")
    except JournalError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it was, the rollback is to be completed
        message = str(error) if isinstance(error, MidstreamError) else _trace(move, error)
        _failed(move, model.ROLLBACK, message)
        line = f"{message}; midstream --continue {move.plan.migration} goes on with the rollback"
        return _result(move, Exit.INTERRUPTED, model.ROLLBACK_INCOMPLETE, line)
    move.directory.withdraw_request()
    move.journal.write("phase", phase=model.ROLLBACK, state=model.DONE)
    message, left = why if code != Exit.DONE else "rolled back as asked", move.journal.known("not_running", "")
    if left:
        return _result(move, Exit.NOT_RUNNING, model.ROLLED_BACK, f"{message}; {left}")
    return _result(move, code, model.ROLLED_BACK, message)


def _result(move: Migration, code: Exit, outcome: str, message: str) -> Exit:
    """The last line of the journal, and of ``--json``."""
    certificate, ledger = move.directory.certificate(), move.directory.ledger()
    detail: dict[str, Any] = {
        "ok": code == Exit.DONE,
        "exit_code": int(code),
        "outcome": outcome,
        "migration": move.plan.migration,
        "run": move.plan.run_id,
        "certificate": certificate.to_json() if certificate else None,
        "downtime": ledger.to_json() if ledger else None,
    }
    move.journal.write("result", message=message, **detail)
    return code
