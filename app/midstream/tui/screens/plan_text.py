"""Text of a plan: changes, downtime, cost and warnings."""

from __future__ import annotations

from collections.abc import Iterator

from midstream import format
from midstream.counts import agree, count
from midstream.migrate import stages
from midstream.migrate.journal import cost
from midstream.migrate.journal.downtime_report import shown_phase
from midstream.migrate.journal.plan import Plan
from midstream.migrate.modes.registry import mode_of
from midstream.tui.style import palette
from midstream.tui.style.glyphs import Glyphs
from midstream.tui.style.styled_text import Text

VALUE_COLUMN = 15  # first cell of values and of wrapped lines


def describe(plan: Plan, glyphs: Glyphs, source_hardware: str = "", width: int = 80) -> Text:
    """Return the lines of a plan in ``width`` cells."""
    text = Text()

    def line(name: str, value: str, note: str = "", colour: str = "") -> None:
        text.append(f"  {name:<{VALUE_COLUMN - 2}}", palette.DIM)
        text.append(format.folded(value, width, VALUE_COLUMN), colour or palette.TEXT)
        if note:
            fits = VALUE_COLUMN + len(value) + 2 + len(note) <= width
            text.append("  " if fits else "\n" + " " * VALUE_COLUMN)
            text.append(note if fits else format.folded(note, width, VALUE_COLUMN), palette.DIM)
        text.append("\n")

    devices = source_hardware or count(plan.shape.source_devices, "device")
    line(
        "from",
        f"{plan.source}  {devices}",
        f"{plan.route.source_state}, step {format.grouped(plan.route.source_step)}",
    )
    line(
        "to",
        f"{plan.target}  {count(plan.shape.target_devices, 'device')}",
        f"ownership {plan.source_epoch} {glyphs.arrow} {plan.epoch}",
    )
    if plan.identity.checkpoint_step is None:
        line("migrates", "state at the stop", "final save: no step is lost", palette.GOOD)
    else:
        lost = discarded(plan.estimate.steps_lost)
        line("migrates", plan.checkpoint, lost, palette.WAIT if plan.estimate.steps_lost else palette.GOOD)
    for warning in plan.policy.warnings:
        text.append(f"  {glyphs.stale} {warning}\n", palette.WAIT)
    for name, value, note in _times(plan):  # on a small terminal only the first lines are visible
        line(name, value, note)
    for change in plan.shape.changes:
        if change.changed:
            line(change.label, f"{change.before} {glyphs.arrow} {change.after}", change.note, palette.ACCENT)
    unchanged = ", ".join(f"{change.name} {change.after}" for change in plan.shape.changes if not change.changed)
    if unchanged:
        line("unchanged", unchanged)
    size, data = plan.estimate.checkpoint_bytes, format.size(plan.estimate.data_bytes)
    state = format.size(size) if size else "unknown bytes"
    state = "nothing" if plan.route.shared_store else state
    line("copies", f"{state} of state, {data} of data", plan.route.probed)
    if plan.estimate.install_bytes:
        line("installs", f"{format.size(plan.estimate.install_bytes)} of packages")
    if plan.route.source_store or plan.route.target_store:
        stores = [store or "on its host" for store in (plan.route.source_store, plan.route.target_store)]
        line("checkpoints", f" {glyphs.arrow} ".join(dict.fromkeys(stores)))
    if plan.shape.memory:
        needed, _, parts = plan.shape.memory.partition(": ")
        line("memory", needed, parts)
    for assumption in plan.estimate.assumptions:
        line("assumes", assumption)
    before, after = plan.estimate.cost_per_hour
    if before is not None or after is not None:
        line("per hour", f"{_price(before)} {glyphs.arrow} {_price(after)}", "" if plan.estimate.cost else _idle(plan))
    for text_line in cost.describe(plan.estimate.cost)[1:] if plan.estimate.cost is not None else ():
        line("cost", text_line)
    text.rstrip()
    return text


def discarded(steps: int) -> str:
    """Return what a migration loses: ``1 step is discarded``."""
    return f"{count(steps, 'step')} {agree(steps)} discarded" if steps > 0 else "no step is lost"


def _times(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and note of downtime and duration."""
    parts = sorted(plan.estimate.predicted_seconds.items(), key=lambda item: -item[1])
    most = ", ".join(f"{shown_phase(name)} {format.seconds(value)}" for name, value in parts[:3] if value)
    if plan.estimate.predicted_downtime is None:
        yield ("downtime", "unknown", f"{', '.join(map(shown_phase, plan.estimate.unknown))} cannot be estimated yet")
    else:
        yield (
            "downtime",
            f"about {format.seconds(plan.estimate.predicted_downtime)}",
            f"mostly {most}" if most else "",
        )
    if plan.estimate.duration:
        yield ("takes", stages.total_text(plan.estimate.duration), stages.stages_text(plan.estimate.duration))


def _price(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _idle(plan: Plan) -> str:
    """Return the cost of the predicted downtime, in which both hosts are paid for."""
    prices = [price for price in plan.estimate.cost_per_hour if price is not None]
    downtime = plan.estimate.predicted_downtime
    return "" if downtime is None else f"the downtime costs about {sum(prices) * downtime / 3600:.2f}"


def consequences(plan: Plan) -> list[str]:
    """Return what the user confirms before the plan is executed, as lines."""
    from midstream.operations.plan_migration import losses  # loaded by who has made the plan

    downtime = plan.estimate.predicted_downtime
    later = "some time" if downtime is None else f"about {format.seconds(downtime)}"
    lines = [mode_of(plan.mode).consequence(plan.source, plan.target, later)]
    if plan.estimate.duration:
        lines.append(f"The migration takes {stages.total_text(plan.estimate.duration)}.")
    return [
        *lines,
        *losses(plan),
        "",
        "Risk: a link breaks, the target fails. Then it is rolled back and the source runs again.",
        "Safety: nothing is deleted; r rolls back until the target has done "
        f"{count(plan.policy.healthy_steps, 'healthy step')}.",
    ]
