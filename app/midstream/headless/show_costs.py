"""`--cost`: hours and money of hosts, runs and migrations."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from midstream.costs import cost_report
from midstream.costs.cost_report import HOUR, CostReport, hours_text, money_text
from midstream.errors import Exit
from midstream.json_events.cost_events import NotKnownEvent
from midstream.output import Output, table

if TYPE_CHECKING:
    from midstream.fleet.fleet import Fleet


DEFAULT_PERIOD = "30d"


def cost(fleet: Fleet, options: argparse.Namespace, output: Output) -> int:
    """Print the costs of a period.

    Returns 0 also for unreachable hosts: a line names each.
    """
    from midstream.costs.collect import collect
    from midstream.fleet.quantities import parse_duration
    from midstream.hosts.host_pool import HostPool

    seconds = parse_duration(options.since or DEFAULT_PERIOD)
    hosts = HostPool(fleet)
    try:
        report = collect(hosts, seconds)
    finally:
        hosts.close()
    if output.as_json:
        _print_json(report, output)
    else:
        output.value({}, text(report))
    return Exit.DONE


def _print_json(report: CostReport, output: Output) -> None:
    for entry in (*report.hosts, *report.runs, *report.migrations):
        output.event(entry.event())
    for line in report.not_known:
        output.event(NotKnownEvent(message=line))
    output.event(report.total())


def text(report: CostReport) -> list[str]:
    """Return the report as tables, totals and what is not known."""
    since = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.since))
    lines = [f"since {since}; prices are those of the fleet file now, also for the past", ""]
    hosts: list[tuple[str, ...]] = [("HOST", "PER HOUR", "ON", "TRAINING", "PREPARING", "IDLE", "COST", "IDLE COST")]
    hosts += [host.cells() for host in report.hosts]
    total = report.total()
    on, training, preparing, idle = (hours_text(getattr(total, f"{name}_hours") * HOUR) for name in cost_report.TIMES)
    cost, idle_cost = "", ""
    if report.cost is not None:
        cost, idle_cost = money_text(report.cost), money_text(report.idle_cost)
    hosts.append(("total", "", on, training, preparing, idle, cost, idle_cost))
    lines += table(hosts)
    if report.runs:
        rows: list[tuple[str, ...]] = [("RUN", "HOSTS", "PROCESSES", "TRAINING", "COST")]
        rows += [run.cells() for run in report.runs]
        lines += ["", *table(rows)]
    if report.migrations:
        rows: list[tuple[str, ...]] = [("MIGRATION", "FROM", "TO", "STATE", "PREPARATION", "DOWNTIME", "COST")]
        rows += [migration.cells() for migration in report.migrations]
        lines += ["", *table(rows)]
    notes = ["runs and migrations are parts of the hosts' cost"]
    if report.without_price:
        notes.append(f"no price_per_hour in the fleet file: {', '.join(report.without_price)}")
    return [*lines, "", *notes, *(f"not known: {line}" for line in report.not_known)]
