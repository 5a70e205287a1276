"""Update the estimates of a migration with its own measurements.

Done after the rehearsal, and when a live migration continues as a warm migration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from midstream.migrate.journal import cost
from midstream.migrate.journal.facts import Facts
from midstream.migrate.modes.registry import present_mode
from midstream.migrate.planning import downtime_estimate, measured_rates
from midstream.migrate.planning.progress import pace_of
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import run_on


def update_estimate(migration: Migration) -> None:
    """Predict downtime and cost again, record them in the journal and report them."""
    plan, facts = migration.plan, migration.journal.facts
    run = run_on(migration, migration.watch.snapshot(), plan.source)
    pace = pace_of(run.curve if run is not None else ())
    mode = present_mode(plan.mode, facts.fallback_reason)
    rehearsal_copy = facts.rehearsal_copy
    size = (rehearsal_copy.bytes if rehearsal_copy else 0) or plan.estimate.checkpoint_bytes
    rates = measured_rates.rates_between(
        measured_rates.past_migrations(), plan.run_id, plan.source, plan.target_host, mode.name, size
    )
    rehearsed = facts.rehearsed_step_seconds or rates.step
    copy = rates.copy
    if rehearsal_copy and rehearsal_copy.seconds and size >= measured_rates.MIN_COPY_BYTES:
        copy = size / rehearsal_copy.seconds
    entries = {name: value for name, value in rates.entries.items() if name != "first_step"}
    rates = replace(rates, copy=copy, step=rehearsed, entries=entries)
    copied = 0 if plan.route.shared_store else size * (1 if copy else max(1, len(plan.route.target_hosts)))
    predicted = downtime_estimate.predict(mode, pace, size, rates, copied_bytes=copied)
    migration.journal.record(Facts(predicted=predicted))
    if not mode.replays:
        migration.note(f"downtime by the measurements: about {sum(predicted.values()):.1f} s")
    if plan.estimate.cost is None:
        return
    updated = cost.estimate(
        plan.estimate.cost_per_hour,
        prepare_seconds=mode.preparation_seconds(
            plan.estimate.data_bytes, size, rates, max(0.0, pace.first_step - pace.step), copied
        ),
        downtime=sum(predicted.values()),
        step_before=pace.step,
        step_after=rehearsed,
        tokens=plan.estimate.cost.tokens,
        steps_left=plan.estimate.cost.steps_left,
    )
    for line in cost.describe(updated) if updated is not None else ():
        migration.note(f"cost: {line}")


def predicted_seconds(migration: Migration) -> Mapping[str, float]:
    """Return the seconds of each downtime phase, as predicted before the downtime."""
    return migration.journal.facts.predicted or migration.plan.estimate.predicted_seconds
