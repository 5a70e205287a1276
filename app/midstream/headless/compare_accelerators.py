"""`--compare`: fit, speed, time and cost of a run on other accelerators."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from midstream.errors import Exit
from midstream.format import duration, size
from midstream.json_events.result_event import CompareResult
from midstream.operations.compare import calibration_notes
from midstream.output import Output, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from midstream.compare.baseline import Baseline
    from midstream.compare.comparison import ComparisonRow
    from midstream.compare.estimate import Range
    from midstream.compare.subject import Subject
    from midstream.fleet.fleet import Fleet

CONFIGS = (".yaml", ".yml")
RANGE = re.compile(r" \([^()]* to [^()]*\)$")
DROPPED = ("DEVICES", "AT A TIME", "TOKENS/S", "MEMORY", "MIGRATION")  # from a table wider than the terminal, in order


def is_config(text: str) -> bool:
    """Return True if the argument of ``--compare`` is a file.

    Run ids have no slash and no such ending.
    """
    return "/" in text or text.endswith(CONFIGS) or Path(text).is_file()


def compare(fleet: Fleet, options: argparse.Namespace, engine: tuple[str, ...], output: Output) -> int:
    """Print a row for each candidate.

    Returns 0 if one fits, 3 if none does, 1 if there is no estimate at all.
    """
    from midstream.compare.baseline import Baseline
    from midstream.compare.candidates import parse_prices
    from midstream.compare.comparison import ordered
    from midstream.compare.subject import of_config, of_run
    from midstream.hosts.host_pool import HostPool
    from midstream.launch.progress_line import reporter
    from midstream.operations import compare as operation
    from midstream.operations.fleet_snapshot import fleet_snapshot, run_of

    prices = parse_prices(options.price or "")
    hosts = HostPool(fleet)
    try:
        if options.compile_on is not None:
            hosts.lookup(options.compile_on)  # a wrong name is refused also where nothing is compiled again
        report = reporter(output)
        names = {name.strip() for name in options.with_.split(",")}
        needs_hosts = not is_config(options.compare) or bool(names & set(fleet.target_names))
        snapshot = fleet_snapshot(hosts) if needs_hosts else None
        if is_config(options.compare):
            subject = of_config(options.compare, engine)
        else:
            assert snapshot is not None
            subject = of_run(hosts, run_of(snapshot, options.compare), engine)
        request = operation.CompareRequest(options.with_, prices, options.compile_on)
        compared = list(operation.compare(hosts, subject, request, snapshot, report))
    finally:
        hosts.close()
    present = next((row for row in compared if isinstance(row, Baseline)), None)
    rows = ordered([row for row in compared if not isinstance(row, Baseline)])
    if present is not None:
        output.event(present.event())
    for row in rows:
        output.event(row.event())
    if not output.as_json:
        output.value({}, text(subject, rows, present, output.columns))
    fits = [row.candidate.name for row in rows if row.fits]
    code = Exit.DONE if fits else Exit.FAILED if all(row.error for row in rows) else Exit.REFUSED
    best = fits[0] if fits else None
    output.event(CompareResult(ok=bool(fits), exit_code=int(code), compared=subject.name, best=best))
    return code


def text(
    subject: Subject, rows: Sequence[ComparisonRow], present: Baseline | None = None, width: int | None = None
) -> list[str]:
    """Return the comparison as a table, and lines about what it does not show.

    Args:
        subject: The run or configuration.
        rows: The candidates.
        present: The run as it trains now, the first row.
        width: Cells of a line; a wider table loses ranges, then columns. None: any.
    """
    migrates = any(row.migration is not None for row in rows)
    head: tuple[str, ...] = (
        "CANDIDATE",
        "DEVICES",
        "FITS",
        "AT A TIME",
        "MEMORY",
        "STEP",
        "TOKENS/S",
        "TO THE END",
        "COST",
    )
    lines: list[tuple[str, ...]] = [(*head, "MIGRATION", "PAYS AFTER") if migrates else head]
    if present is not None:
        cells = _present_cells(present)
        lines.append((*cells, "", "") if migrates else cells)
    for row in rows:
        cells = _cells(row)
        lines.append((*cells, *_migration_cells(row)) if migrates else cells)
    text_lines, complete = _narrowed(lines, width)
    text_lines += ["", *notes(subject, rows)]
    return text_lines if complete else [*text_lines, "a wider terminal shows more, and --json everything"]


def _narrowed(lines: list[tuple[str, ...]], width: int | None) -> tuple[list[str], bool]:
    """Return a table of at most ``width`` cells, and whether it has every cell.

    The table is wider where even the columns that always stay need more.
    """
    text_lines = table(lines)
    if width is None or max(map(len, text_lines)) <= width:
        return text_lines, True
    lines = [tuple(RANGE.sub("", cell) for cell in line) for line in lines]
    for name in DROPPED:
        if max(map(len, table(lines))) <= width:
            break
        if name in lines[0]:
            column = lines[0].index(name)
            lines = [line[:column] + line[column + 1 :] for line in lines]
    return table(lines), False


def notes(subject: Subject, rows: Sequence[ComparisonRow]) -> list[str]:
    """Return a line for each error, unfit candidate and calibration.

    An unfit candidate is one that does not fit as configured.
    """
    lines = [f"{row.candidate.name}: {row.error}" for row in rows if row.error]
    for row in rows:
        estimate = row.estimate
        if estimate is None or estimate.fits_as_configured:
            continue
        needed = f"needs {size(estimate.needed)} a device" if estimate.needed else "needs more memory than a device has"
        divided = f"{estimate.configured} at a time"
        if estimate.fits:
            lines.append(
                f"{row.candidate.name}: {divided} {needed}; trainer.per_device_parallelism "
                f"{estimate.per_device_parallelism} fits"
            )
        else:
            lines.append(f"{row.candidate.name}: does not fit: one example at a time {needed}")
    if subject.run is not None and not subject.run.step_seconds:
        lines.append(f"{subject.name}: no step is measured yet, so that nothing says when a migration pays for itself")
    return [*lines, *calibration_notes(rows)]


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    from midstream.compare.comparison import step_text

    estimate, name = row.estimate, row.candidate.name
    if estimate is None:
        return (name, str(row.candidate.accelerators.devices), "?", "", "", "", "", "", "")
    at_a_time = f"{estimate.per_device_parallelism} x {estimate.accumulation}" if estimate.fits else "-"
    if estimate.fits and estimate.largest and estimate.largest != estimate.per_device_parallelism:
        at_a_time += f" (up to {estimate.largest})"
    memory = size(estimate.memory.peak) if estimate.memory else ""
    if memory and estimate.device_memory:
        memory += f" of {size(estimate.device_memory)}"
    rate = row.tokens_per_second
    return (
        name,
        str(estimate.devices),
        "yes" if estimate.fits else "no",
        at_a_time,
        memory,
        _range(row.step, step_text),
        f"{rate:,.0f}" if rate else "",
        _range(row.remaining, duration),
        _range(row.price_to_end, amount),
    )


def _present_cells(present: Baseline) -> tuple[str, ...]:
    from midstream.compare.comparison import step_text

    rate = present.tokens_per_second
    return (
        present.name,
        str(present.devices),
        "yes",
        "",
        "",
        _range(present.step, step_text),
        f"{rate:,.0f}" if rate else "",
        _range(present.remaining, duration),
        _range(present.price_to_end, amount),
    )


def _migration_cells(row: ComparisonRow) -> tuple[str, str]:
    if row.migration is None:
        return "", ""
    words = duration(row.migration.seconds)
    if row.migration.cost is None:
        return words, ""
    words += f", {amount(row.migration.cost.migration)}"
    hours = row.migration.cost.pays_after_hours
    return words, "never" if hours is None else duration(hours * 3600)


def _range(value: Range | None, form: object) -> str:
    if value is None or not callable(form):
        return ""
    return f"{form(value.value)} ({form(value.low)} to {form(value.high)})"


def amount(value: float) -> str:
    """Format money: ``0.83``, ``1,204``."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
