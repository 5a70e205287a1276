"""Rows of the costs screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream import format
from midstream.tui.style import palette
from midstream.tui.widgets.table import Column, Row

if TYPE_CHECKING:
    from midstream.costs.cost_report import CostReport, HostCost

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
    rows: dict[str, list[tuple[float | None, Row]]] = {
        HOSTS: [(host.cost, _host(host)) for host in report.hosts],
        RUNS: [(run.cost, Row(run.run_id, run.cells())) for run in report.runs],
        MIGRATIONS: [(migration.cost, Row(migration.migration, migration.cells())) for migration in report.migrations],
    }
    return [row for _, row in sorted(rows[view], key=lambda pair: -(pair[0] or 0.0))]


def _host(host: HostCost) -> Row:
    name, price, on, training, preparing, idle, *money = host.cells()
    devices = str(host.accelerators) if host.accelerators else format.NONE
    shown = (idle, palette.WAIT) if host.idle > host.training else idle
    return Row(name, (name, price, devices, on, training, preparing, shown, *money))
