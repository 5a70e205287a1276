"""What is still to come of a move, by what it has measured itself: after the rehearsal, and once a live migration
has become
a warm migration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from midstream.migrate.execution.migration import Migration, replayed
from midstream.migrate.model import WARM
from midstream.migrate.planning import cost, measured_rates
from midstream.migrate.proof import downtime_report


def again(move: Migration) -> None:
    """Predict the downtime, and where there are prices the cost, anew; the journal has both, and a line says so."""
    plan, known = move.plan, move.journal.known
    run = move.run_on(move.watch.snapshot(), plan.source)
    curve = run.curve if run is not None else ()
    mode = plan.mode if replayed(move) or plan.mode == WARM else WARM
    size = int(known("rehearsal_bytes") or 0) or plan.checkpoint_bytes
    found = measured_rates.measured(measured_rates.look_back(), plan.run_id, plan.source, plan.target_host, mode, size)
    rehearsed = known("rehearsed_seconds") or found.step
    seconds = known("rehearsal_seconds")
    copy = size / seconds if seconds and size >= measured_rates.TELLING else found.copy
    entries = {name: value for name, value in found.entries.items() if name != "first_step"}
    found = replace(found, copy=copy, step=rehearsed, entries=entries)
    predicted = downtime_report.predict(curve, size, mode, found)
    move.journal.fact(predicted=predicted)
    if mode == WARM:
        move.note(f"downtime, by what was measured: about {sum(predicted.values()):.1f} s")
    if plan.cost is None:
        return
    step, first = downtime_report.step_seconds(curve)
    amended = cost.estimate(
        plan.cost_per_hour,
        prepare_seconds=downtime_report.preparing(plan.data_bytes, size, mode, found, max(0.0, first - step)),
        downtime=sum(predicted.values()),
        step_before=step,
        step_after=rehearsed,
        tokens=plan.cost.tokens,
        steps_left=plan.cost.steps_left,
    )
    for line in cost.describe(amended) if amended is not None else ():
        move.note(f"cost: {line}")


def predicted(move: Migration) -> Mapping[str, float]:
    """Seconds of each entry of the ledger: the newest prediction that was made before the run stood still."""
    return move.journal.known("predicted") or move.plan.predicted_seconds
