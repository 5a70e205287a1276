"""Rows of the costs screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream import format
from midstream.costs.cost_report import hours_text, money_text
from midstream.tui.style import palette
from midstream.tui.widgets.table import Column, Row

if TYPE_CHECKING:
    from midstream.costs.cost_report import CostReport

HOSTS, RUNS, MIGRATIONS = "hosts", "runs", "migrations"
COLUMNS = {
    HOSTS: (
        Column("HOST"),
        Column("PER HOUR", right=True, drop=3),
        Column("DEVICES", right=True, drop=5),
        Column("ON", right=True, drop=1),
        Column("TRAINING", right=True),
        Column("PREPARING", right=True, drop=4),
        Column("IDLE", right=True),
        Column("COST", right=True),
        Column("IDLE COST", right=True, drop=2),
    ),
    RUNS: (
        Column("RUN"),
        Column("HOSTS", drop=2),
        Column("PROCESSES", right=True),
        Column("TRAINING", right=True, drop=1),
        Column("COST", right=True),
    ),
    MIGRATIONS: (
        Column("MIGRATION"),
        Column("FROM", drop=3),
        Column("TO", drop=2),
        Column("STATE", drop=1),
        Column("PREPARATION", right=True, drop=4),
        Column("DOWNTIME", right=True),
        Column("COST", right=True),
    ),
}


def rows_of(view: str, report: CostReport) -> list[Row]:
    """Return the rows of a view, the most expensive first."""
    rows = {HOSTS: _hosts, RUNS: _runs, MIGRATIONS: _migrations}[view](report)
    return [row for _, row in sorted(rows, key=lambda pair: -(pair[0] or 0.0))]


def _hosts(report: CostReport) -> list[tuple[float | None, Row]]:
    found: list[tuple[float | None, Row]] = []
    for host in report.hosts:
        idle = hours_text(host.idle)
        cells = (
            host.host,
            money_text(host.price),
            str(host.accelerators) if host.accelerators else format.NONE,
            hours_text(host.on),
            hours_text(host.training),
            hours_text(host.preparing),
            (idle, palette.WAIT) if host.idle > host.training else idle,
            money_text(host.cost),
            money_text(host.idle_cost),
        )
        found.append((host.cost, Row(host.host, cells)))
    return found


def _runs(report: CostReport) -> list[tuple[float | None, Row]]:
    return [
        (
            run.cost,
            Row(
                run.run_id,
                (
                    run.run_id,
                    "+".join(run.hosts),
                    hours_text(run.processes),
                    hours_text(run.training),
                    money_text(run.cost),
                ),
            ),
        )
        for run in report.runs
    ]


def _migrations(report: CostReport) -> list[tuple[float | None, Row]]:
    return [
        (
            each.cost,
            Row(
                each.migration,
                (
                    each.migration,
                    each.source,
                    each.target,
                    each.state,
                    format.seconds(each.preparation),
                    format.seconds(each.downtime),
                    money_text(each.cost),
                ),
            ),
        )
        for each in report.migrations
    ]
