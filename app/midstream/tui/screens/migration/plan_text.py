"""A plan in words: every number that changes, what it costs, what to mind."""

from __future__ import annotations

from midstream.migrate.model import Plan
from midstream.migrate.planning import cost
from midstream.tui import number_format, palette
from midstream.tui.glyphs import Glyphs
from midstream.tui.styled_text import Text

VALUES = 15  # the column that values begin in, and that what is folded begins in again


def describe(plan: Plan, glyphs: Glyphs, source_hardware: str = "", width: int = 80) -> Text:
    """The lines that the wizard shows, in ``width`` cells."""
    text = Text()

    def line(name: str, value: str, note: str = "", colour: str = "") -> None:
        text.append(f"  {name:<{VALUES - 2}}", palette.DIM)
        text.append(value, colour or palette.TEXT)
        if note:
            fits = VALUES + len(value) + 2 + len(note) <= width
            text.append("  " if fits else "\n" + " " * VALUES)
            text.append(note if fits else number_format.folded(note, width, VALUES), palette.DIM)
        text.append("\n")

    devices = source_hardware or f"{plan.source_devices} devices"
    line("from", f"{plan.source}  {devices}", f"{plan.source_state}, step {number_format.grouped(plan.source_step)}")
    line(
        "to", f"{plan.target}  {plan.target_devices} devices", f"epoch {plan.source_epoch} {glyphs.arrow} {plan.epoch}"
    )
    if plan.checkpoint_step is None:
        line("moves", "its state when it is sealed", "a final save: no step is lost", palette.GOOD)
    else:
        lost = f"{plan.steps_lost} steps are given up" if plan.steps_lost else "no step is lost"
        line("moves", plan.checkpoint, lost, palette.WAIT if plan.steps_lost else palette.GOOD)
    for change in plan.changes:
        if change.changed:
            line(change.name, f"{change.before} {glyphs.arrow} {change.after}", change.note, palette.ACCENT)
    kept = ", ".join(f"{change.name} {change.after}" for change in plan.changes if not change.changed)
    if kept:
        line("kept", kept)
    line(
        "copies",
        f"{number_format.size(plan.checkpoint_bytes)} of state, {number_format.size(plan.data_bytes)} of data",
        plan.route,
    )
    if plan.source_store or plan.target_store:
        places = [store or "on its host" for store in (plan.source_store, plan.target_store)]
        line("checkpoints", f" {glyphs.arrow} ".join(dict.fromkeys(places)))
    parts = sorted(plan.predicted_seconds.items(), key=lambda item: -item[1])
    most = ", ".join(f"{name} {number_format.seconds(value)}" for name, value in parts[:3] if value)
    line("downtime", f"about {number_format.seconds(plan.predicted_downtime)}", f"most of it {most}" if most else "")
    before, after = plan.cost_per_hour
    if before is not None or after is not None:
        line("per hour", f"{_price(before)} {glyphs.arrow} {_price(after)}", "" if plan.cost else _idle(plan))
    for told in cost.describe(plan.cost)[1:] if plan.cost is not None else ():
        line("cost", told)
    for warning in plan.warnings:
        text.append(f"  {glyphs.stale} {warning}\n", palette.WAIT)
    text.rstrip()
    return text


def _price(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _idle(plan: Plan) -> str:
    """What the predicted downtime costs: both machines are paid for, and neither trains."""
    prices = [price for price in plan.cost_per_hour if price is not None]
    return f"standing still for the downtime costs about {sum(prices) * plan.predicted_downtime / 3600:.2f}"
