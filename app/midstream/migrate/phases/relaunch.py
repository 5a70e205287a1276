"""Hand the fence over and start the run on the target from exactly what was sealed."""

from __future__ import annotations

import time
from typing import Any

from midstream.errors import MidstreamError
from midstream.migrate.execution.migration import Migration, replayed
from midstream.migrate.failover.preemption import unless_preempted
from midstream.migrate.host_group import HostGroup
from midstream.migrate.model import RELAUNCH
from midstream.migrate.phases import prepare_standby, replica
from midstream.migrate.phases.cutover import bring_history, bring_state
from midstream.migrate.phases.streamed_copy import Streamed
from midstream.watch.snapshot import RunView
from midstream_engine import records

START_TIMEOUT = 1800.0  # seconds: restore and compile of a large model


class Relaunch:
    """Runs only after the seal: the journal's fact ``sealed`` is the evidence. Never starts a second engine: an attempt
    of this migration that lives is adopted."""

    name = RELAUNCH

    def run(self, move: Migration) -> None:
        sealed, told = move.journal.known("sealed"), move.journal.known("target_attempt") is not None
        plan = move.plan
        if told and self._moved_on(move):
            return
        move.journal.fact(relaunching=True)  # from here on a rollback has to look at the target
        number = None if told else self._hand_over(move, sealed)
        if number is None:
            number = self._start_or_adopt(move, sealed)
        move.journal.fact(target_attempt=number)
        wait_training(move, move.target_group, number)
        if move.journal.known("training_seen") is None:
            move.journal.fact(training_seen=time.time())
        if plan.stands_by and not move.journal.known("history"):
            with unless_preempted(move, move.source_group, "the curve up to the seal stays with it"):
                bring_history(move, resolved=True)
            move.journal.fact(history=True)

    @staticmethod
    def _hand_over(move: Migration, sealed: dict[str, Any]) -> int | None:
        """The attempt that stood by, once it has taken the run over; None where it has to be started."""
        if not move.plan.stands_by:
            return None
        if replayed(move):
            number = prepare_standby.hand_over(move, prepare_standby.promoting(move, sealed), sealed)
            if number is not None:
                return number
            replica.fall_back(move, "the shadow could not be promoted")
            bring_state(move, sealed["checkpoint"], Streamed())
        return prepare_standby.hand_over(move, prepare_standby.restoring(move, sealed), sealed)

    def _start_or_adopt(self, move: Migration, sealed: dict[str, Any]) -> int:
        plan, target = move.plan, move.target
        move.target_group.put_fence(sealed["fence"], plan.migration)
        number = _present_attempt(move)
        if number is not None:
            move.note(f"attempt {number} of this migration runs on {target.name} already")
            return number
        if plan.stands_by:
            bring_history(move)
        move.target_group.share_config()
        point = _newest(move) or sealed
        move.target_group.hand_out_checkpoint(point["checkpoint"])
        if move.journal.known("relaunched") is None:
            move.journal.fact(relaunched=time.time())
        order, at_least = prepare_standby.restoring(move, point), sealed["attempt"] + 1
        return move.start(move.target_group, order, holder=plan.target, at_least=at_least)

    @staticmethod
    def _moved_on(move: Migration) -> bool:
        """Whether somebody moved the run on from the target since this migration started it there."""
        plan, target = move.plan, move.target
        described = target.call("runs.run_state.describe", root=target.root, run_id=plan.run_id)
        epoch = described["fence"]["epoch"] if described["fence"] else 0
        return epoch > plan.epoch


def _present_attempt(move: Migration) -> int | None:
    """The attempt on the target that this migration started and that still runs, or has trained to the end."""
    found = move.target_group.attempt_of_migration(move.plan.migration)
    if found is None:
        return None
    finished = (found["status"] or {}).get("state") == records.FINISHED
    return found["attempt"] if found["running"] or finished else None


def _newest(move: Migration) -> dict[str, Any] | None:
    """The target's own newest checkpoint under this epoch, where an earlier attempt there has saved one: a run that
    goes on again must not fall back to the migrated state."""
    plan, described = move.plan, move.target_group.describe()
    own = [p for p in described["checkpoints"] if p["complete"] and p["accepted"] and p["epoch"] == plan.epoch]
    if not own:
        return None
    point = max(own, key=lambda point: (point["step"], point["attempt"]))
    return {"checkpoint": point["name"], "root_digest": point["root_digest"], "step": point["step"]}


def wait_training(move: Migration, side: HostGroup, attempt: int) -> RunView:
    """Until the attempt has done an update. MidstreamError with its last log lines where it ended."""

    def decided(run: RunView) -> bool:
        if run.attempt != attempt:
            return False
        if run.state in records.ENDED or run.state == "lost":
            return True
        return any(row["attempt"] == attempt and "train/loss" in row for row in run.curve[-64:])

    host = side.first.name
    run = move.wait_for(
        "the first update of the new attempt", host, decided, START_TIMEOUT, lambda: side.check_group(attempt)
    )
    if run.state in ("failed", "stopped", "lost"):
        message = run.status.message if run.status else ""
        last = next((line for line in reversed(run.log) if line.strip()), "")
        why = side.verdict(attempt) or message or last or "no word of it in its log"
        raise MidstreamError(
            f"attempt {attempt} on {side.target.name} ended ({run.state}): {why}",
            f"its log: {host}:{side.paths.attempt(attempt).log()}",
        )
    return run
