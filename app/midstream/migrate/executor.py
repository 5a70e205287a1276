"""Carries a migration out: phase after phase, each journaled before and after; rolls back when one fails."""

from __future__ import annotations

import traceback
from typing import Any

from midstream.errors import Exit, HostError, LostContact, MidstreamError
from midstream.migrate import model
from midstream.migrate.journal import read_events
from midstream.migrate.move import Move, NeedsOperator, Phase, RollbackRequested
from midstream.migrate.phases import phases
from midstream.migrate.phases.rollback import Rollback
from midstream_engine import records


def execute(move: Move, *, rollback: bool = False) -> Exit:
    """From wherever the journal says the migration stands to its end. Returns the exit code of the command line."""
    done = {
        event.phase
        for event in read_events(move.directory.journal_file)
        if event.event == "phase" and event.state == model.DONE
    }
    if rollback:
        return _roll_back(move, "a person asked for it", Exit.DONE)
    if model.ROLLBACK in _begun(move) and not move.journal.known("rolled_back"):
        return _roll_back(move, "an earlier rollback was interrupted", Exit.FAILED)
    for phase in phases():
        if phase.name in done and not _again(phase, move):
            continue
        try:
            _run(move, phase)
        except RollbackRequested:
            return _roll_back(move, "a person asked for it", Exit.DONE)
        except NeedsOperator as error:
            return _result(move, Exit.INTERRUPTED, model.INTERRUPTED, str(error))
        except MidstreamError as error:
            _failed(move, phase.name, str(error))
            return _roll_back(move, str(error), Exit.NOT_CERTIFIED if error.code == Exit.NOT_CERTIFIED else Exit.FAILED)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the source has to run again
            _failed(move, phase.name, f"{type(error).__name__}: {error}")
            move.journal.write("trace", phase=phase.name, message=traceback.format_exc())
            return _roll_back(move, f"{type(error).__name__}: {error}", Exit.FAILED)
    return _result(move, Exit.DONE, model.COMPLETED, "")


def _begun(move: Move) -> set[str]:
    return {event.phase for event in read_events(move.directory.journal_file) if event.event == "phase"}


def _again(phase: Phase, move: Move) -> bool:
    """Relaunch is looked at again on every continuation: the target may have died since."""
    return phase.name == model.RELAUNCH


def _run(move: Move, phase: Phase) -> None:
    move.phase = phase.name
    move.check_requests()
    move.journal.write("phase", phase=phase.name, state=model.STARTED)
    phase.run(move)
    move.journal.write("phase", phase=phase.name, state=model.DONE)


def _failed(move: Move, phase: str, message: str) -> None:
    move.journal.write("phase", phase=phase, state=model.FAILED, message=message)


def _roll_back(move: Move, why: str, code: Exit) -> Exit:
    """Back to the source. Where that cannot be completed now, the migration stays open and says how it goes on."""
    move.phase = model.ROLLBACK
    move.journal.write("phase", phase=model.ROLLBACK, state=model.STARTED, message=why)
    try:
        Rollback().run(move)
    except (LostContact, HostError, MidstreamError) as error:
        _failed(move, model.ROLLBACK, str(error))
        line = f"{error}; midstream --continue {move.plan.migration} goes on with the rollback"
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
