"""Carries a migration out: phase after phase, each journaled before and after; rolls back when one fails."""

from __future__ import annotations

import time
import traceback
from typing import Any

from midstream.errors import Exit, HostError, LostContact, MidstreamError
from midstream.migrate import model
from midstream.migrate.journal import outcome, read_events
from midstream.migrate.move import Move, MovedOn, NeedsOperator, Phase, RollbackRequested, ways_on
from midstream.migrate.phases import phases
from midstream.migrate.phases.rollback import Rollback
from midstream_engine import records

ASKED = "a person asked for it"
CUTS = 5  # of a connection, in one phase
RECONNECT = 120.0  # seconds that a lost connection is tried again before the phase counts as failed
PAUSE = 1.0  # seconds between two tries


def execute(move: Move, *, rollback: bool = False) -> Exit:
    """From wherever the journal says the migration stands to its end. Returns the exit code of the command line."""
    events = read_events(move.directory.journal_file)
    state = outcome(events)
    if state.ended:  # another process was quicker
        return _result(move, Exit(state.exit_code), state.outcome, state.error)
    done = {event.phase for event in events if event.event == "phase" and event.state == model.DONE}
    begun = next((e for e in events if e.event == "phase" and e.phase == model.ROLLBACK), None)
    if begun is not None:
        return _roll_back(move, begun.message, Exit(begun.detail.get("exit_code", Exit.FAILED)))
    if rollback or move.directory.request_file.exists():
        return _roll_back(move, ASKED, Exit.DONE)
    try:
        move.source_side.connect()
        move.target_side.connect()
    except HostError as error:  # nothing was done yet, and nothing has to be undone for that
        line = f"{error}; midstream --continue {move.plan.migration} goes on when it answers"
        return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, line)
    for phase in phases():
        if phase.name in done and not _again(phase):
            continue
        try:
            _run(move, phase)
        except RollbackRequested:
            return _roll_back(move, ASKED, Exit.DONE)
        except NeedsOperator as error:
            return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, str(error))
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the run has to go on
            message = str(error) if isinstance(error, MidstreamError) else _trace(move, error)
            _failed(move, phase.name, message)
            if model.CERTIFY in done:  # the run goes on there, and what it has done since is not ours to give up
                return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, f"{message} ({ways_on(move)})")
            certified = getattr(error, "code", Exit.FAILED) != Exit.NOT_CERTIFIED
            return _roll_back(move, message, Exit.FAILED if certified else Exit.NOT_CERTIFIED)
        done.add(phase.name)
    return _result(move, Exit.DONE, model.COMPLETED, "")


def _again(phase: Phase) -> bool:
    """Relaunch is looked at again on every continuation: the target may have died since."""
    return phase.name == model.RELAUNCH


def _run(move: Move, phase: Phase) -> None:
    move.phase = phase.name
    move.check_requests()
    move.journal.write("phase", phase=phase.name, state=model.STARTED)
    _patiently(move, phase)
    move.journal.write("phase", phase=phase.name, state=model.DONE)


def _patiently(move: Move, phase: Phase) -> None:
    """Run the phase; where a connection is cut, make it anew and run the phase again, which goes on where it was. A
    host that does not come back in time raises LostContact, as does a link that is cut again and again; TakenBack where
    its provider says that it never will."""
    cuts, source, target = 0, move.asked(move.source_side), move.asked(move.target_side)
    while True:
        try:
            return phase.run(move)
        except HostError as error:
            if not isinstance(error, LostContact) and _connected(move):
                raise  # it answers: what is wrong there is not the connection
            cuts += 1
            if cuts > CUTS:
                raise
            move.note(f"{error.message}; connecting again: losing contact is not losing the run")
            deadline = time.monotonic() + RECONNECT
            while not _connected(move):
                move.check_requests()
                if phase.name != model.ROLLBACK:
                    target.check()
                    if move.journal.known("sealed") is None:  # later the move can do without it
                        source.check()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(PAUSE)


def _connected(move: Move) -> bool:
    try:
        move.source_side.connect()
        move.target_side.connect()
    except HostError:
        return False
    return True


def _failed(move: Move, phase: str, message: str) -> None:
    move.journal.write("phase", phase=phase, state=model.FAILED, message=message)


def _trace(move: Move, error: Exception) -> str:
    """One line for an error that nobody foresaw; where it came from is in the journal."""
    move.journal.write("trace", phase=move.phase, message=traceback.format_exc())
    return f"{type(error).__name__}: {error}"


def _roll_back(move: Move, why: str, code: Exit) -> Exit:
    """Back to the source. Where that cannot be completed now, the migration stays open and says how it goes on.
    ``code`` is journaled: whoever completes the rollback ends with it."""
    move.phase = model.ROLLBACK
    move.journal.write("phase", phase=model.ROLLBACK, state=model.STARTED, message=why, exit_code=int(code))
    rollback = Rollback()
    try:
        _patiently(move, rollback)
    except MovedOn as error:  # whoever moved it on has the run; what this migration held of it is not its own any more
        _failed(move, model.ROLLBACK, error.message)
        move.directory.request_file.unlink(missing_ok=True)
        return _result(move, Exit.FAILED, model.MOVED_ON, f"{error.message} ({error.fix})")
    except Exception as error:  # noqa: BLE001 - whatever it was, the rollback is to be completed
        message = str(error) if isinstance(error, MidstreamError) else _trace(move, error)
        _failed(move, model.ROLLBACK, message)
        line = f"{message}; midstream --continue {move.plan.migration} goes on with the rollback"
        return _result(move, Exit.INTERRUPTED, model.ROLLBACK_INCOMPLETE, line)
    move.directory.request_file.unlink(missing_ok=True)
    move.journal.write("phase", phase=model.ROLLBACK, state=model.DONE)
    return _result(move, code, model.ROLLED_BACK, why if code != Exit.DONE else "rolled back as asked")


def _result(move: Move, code: Exit, outcome: str, message: str) -> Exit:
    """The last line of the journal, and of ``--json``."""
    directory = move.directory
    detail: dict[str, Any] = {
        "ok": code == Exit.DONE,
        "exit_code": int(code),
        "outcome": outcome,
        "migration": move.plan.migration,
        "run": move.plan.run_id,
        "certificate": records.read_json_or_none(str(directory.certificate_file)),
        "ledger": records.read_json_or_none(str(directory.ledger_file)),
    }
    move.journal.write("result", message=message, **detail)
    return code
