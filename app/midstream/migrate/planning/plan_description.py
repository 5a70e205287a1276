"""Description of a plan in lines, for `--dry-run` and confirmations."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.counts import count
from midstream.format import duration, size
from midstream.migrate import stages
from midstream.migrate.journal import cost
from midstream.migrate.journal.downtime_report import shown_phase
from midstream.migrate.journal.plan import Plan


def describe(plan: Plan) -> list[str]:
    """Describe the plan in lines for the user, as `--dry-run` prints it."""
    megabyte = 1e6
    state = (
        f"{plan.estimate.checkpoint_bytes / megabyte:.1f} MB" if plan.estimate.checkpoint_bytes else "an unknown amount"
    )
    if plan.route.shared_store:
        state = "nothing"
    data = f"{plan.estimate.data_bytes / megabyte:.1f} MB"
    if plan.estimate.duration.get(stages.DATA, 0.0) is None:
        data = "an unknown amount"
    source, target = _shown(plan.source, plan.route.source_hosts), _shown(plan.target, plan.route.target_hosts)
    stores = (plan.route.source_store, plan.route.target_store)
    locations = [store or "on its host" for store in stores]
    lines = [
        f"migration  {plan.migration}",
        f"run        {plan.run_id}  step {plan.route.source_step} ({plan.route.source_state})",
        f"from       {source}  {count(plan.shape.source_devices, 'device')}  ownership {plan.source_epoch}",
        f"to         {target}  {count(plan.shape.target_devices, 'device')}  ownership {plan.epoch}",
        f"mode       {plan.mode}",
        f"checkpoint {plan.checkpoint}"
        + ("" if plan.identity.checkpoint_step is not None else " (a final save when the source stops)"),
        f"copies     {state} of state, {data} of data",
        *([f"installs   {size(plan.estimate.install_bytes)} of packages"] if plan.estimate.install_bytes else []),
        f"route      {plan.route.probed}",
        *([f"store      checkpoints {' -> '.join(dict.fromkeys(locations))}"] if any(stores) else []),
        f"loses      {count(plan.estimate.steps_lost, 'step')}",
    ]
    for change in plan.shape.changes:
        arrow = f"{change.before} -> {change.after}" if change.changed else f"{change.after} (unchanged)"
        note = f"  {change.note}" if change.note and change.changed else ""
        lines.append(f"{change.label:<10} {arrow}{note}")
    if plan.shape.memory:
        lines.append(f"memory     {plan.shape.memory}")
    lines.append(f"downtime   {downtime_text(plan)}")
    if plan.estimate.duration:
        lines.append(f"takes      {stages.total_text(plan.estimate.duration)}")
        lines.append(f"of this    {stages.stages_text(plan.estimate.duration) or 'nothing is known yet'}")
    lines += [f"assumes    {line}" for line in plan.estimate.assumptions]
    if plan.estimate.cost is not None:
        lines += [f"cost       {line}" for line in cost.describe(plan.estimate.cost)]
    lines += [f"warning    {warning}" for warning in plan.policy.warnings]
    lines += [f"agree to   {line} (--yes)" for line in plan.policy.consent]
    lines.append(f"same as    {plan.command()}")
    return lines


def downtime_text(plan: Plan) -> str:
    """Return the expected downtime with its longest phases."""
    phases = {name: value for name, value in plan.estimate.predicted_seconds.items() if value >= stages.SHORT}
    parts = ", ".join(f"{shown_phase(name)} {duration(value)}" for name, value in phases.items())
    if plan.estimate.predicted_downtime is None:
        why = f"unknown: {', '.join(map(shown_phase, plan.estimate.unknown))} cannot be estimated yet"
        return why + (f"; known: {parts}" if parts else "")
    return f"about {duration(plan.estimate.predicted_downtime)}" + (f" ({parts})" if parts else "")


def _shown(name: str, hosts: Sequence[str]) -> str:
    return f"{name} ({', '.join(hosts)})" if len(hosts) > 1 else name
