"""What is still to come of a move, by what it has measured itself: after the rehearsal, and once an overtake has become
a handover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from midstream.migrate import cost, ledger, rates
from midstream.migrate.model import HANDOVER
from midstream.migrate.move import Move, replayed


def again(move: Move) -> None:
    """Predict the downtime, and where there are prices the cost, anew; the journal has both, and a line says so."""
    plan, known = move.plan, move.journal.known
    run = move.run_on(move.watch.snapshot(), plan.source)
    curve = run.curve if run is not None else ()
    mode = plan.mode if replayed(move) or plan.mode == HANDOVER else HANDOVER
    size = int(known("rehearsal_bytes") or 0) or plan.checkpoint_bytes
    found = rates.measured(rates.look_back(), plan.run_id, plan.source, plan.target_host, mode, size)
    rehearsed = known("rehearsed_seconds") or found.step
    seconds = known("rehearsal_seconds")
    copy = size / seconds if seconds and size >= rates.TELLING else found.copy
    entries = {name: value for name, value in found.entries.items() if name != "first_step"}
    found = replace(found, copy=copy, step=rehearsed, entries=entries)
    predicted = ledger.predict(curve, size, mode, found)
    move.journal.fact(predicted=predicted)
    if mode == HANDOVER:
        move.note(f"downtime, by what was measured: about {sum(predicted.values()):.1f} s")
    if plan.cost is None:
        return
    step, first = ledger.step_seconds(curve)
    amended = cost.estimate(
        plan.cost_per_hour,
        prepare_seconds=ledger.preparing(plan.data_bytes, size, mode, found, max(0.0, first - step)),
        downtime=sum(predicted.values()),
        step_before=step,
        step_after=rehearsed,
        tokens=plan.cost.tokens,
        steps_left=plan.cost.steps_left,
    )
    for line in cost.describe(amended) if amended is not None else ():
        move.note(f"cost: {line}")


def predicted(move: Move) -> Mapping[str, float]:
    """Seconds of each entry of the ledger: the newest prediction that was made before the run stood still."""
    return move.journal.known("predicted") or move.plan.predicted_seconds
