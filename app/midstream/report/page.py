"""The page of a run's report. It loads nothing, runs nothing, and can be printed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from midstream import format
from midstream.charts.chart import Chart
from midstream.charts.points import STEP
from midstream.charts.run_lines import lines_of
from midstream.charts.svg import svg
from midstream.costs.cost_report import hours_text, money_text
from midstream.listing import run_facts
from midstream.report.certificate_section import migration_sections
from midstream.report.html import element, facts, items, paragraph, table, text
from midstream.report.run_report import RunReport
from midstream.version import version_text
from midstream_core.listed_checkpoint import newest_checkpoint

# The first one is always drawn, the others where the run has recorded them.
METRICS = ("train/loss", "eval/loss", "throughput/tokens_per_second", "optim/learning_rate")
GENERATOR = '<meta name="generator" content="midstream --report">'
# No script, no picture from elsewhere, no form: also if an escape is missing somewhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ccc; padding-bottom: .2rem; }
nav a { margin-right: 1rem; } a { color: #0058a3; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { text-align: left; vertical-align: top;
  padding: .2rem .9rem .2rem 0; border-bottom: 1px solid #e4e4e4; overflow-wrap: anywhere; }
.facts th { font-weight: normal; color: #666; white-space: nowrap; }
svg { display: block; width: 100%; height: auto; margin: .6rem 0; }
.dim { color: #666; } .good { color: #00664a; font-weight: bold; } .bad { color: #a83a00; font-weight: bold; }
code, .config td { font-family: ui-monospace, monospace; font-size: 13px; }
@media print { body { margin: 0; max-width: none; font-size: 11pt; } nav { display: none; }
  h2, h3 { break-after: avoid; } svg, tr { break-inside: avoid; } a { color: inherit; text-decoration: none; } }
"""


def page(report: RunReport) -> str:
    """Return the report as HTML."""
    run = report.run
    sections = [
        ("curves", "Curves", "".join(_curves(report))),
        ("lineage", "Lineage", _lineage(report)),
        (
            "migrations",
            "Migrations",
            "".join(migration_sections(report)) or paragraph(_without_migrations(report), "dim"),
        ),
        ("cost", "Cost", _cost(report)),
        ("config", "Configuration", _config(report)),
    ]
    if report.not_known:
        sections.append(("not-known", "Not known", items(report.not_known)))
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections)
    body = [
        element("h1", text(run.run_id)),
        paragraph(f"Report of {utc(report.made)}, by midstream {version_text()}.", "dim"),
        element("nav", links),
        _summary(report),
        *(element("section", element("h2", text(title)), body, name=name) for name, title, body in sections),
    ]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8">',
            GENERATOR,
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{text(run.run_id)}: report</title>",
            f"<style>{STYLE}</style></head>",
            element("body", "\n".join(body)),
            "</html>\n",
        ]
    )


def _without_migrations(report: RunReport) -> str:
    """Return the words for a report without a migration.

    This machine may not have its journal.
    """
    lineage = report.run.lineage
    if lineage is None:
        return "It is not known whether it was migrated: its lineage cannot be read."
    if any(entry.migration for entry in lineage.entries):
        return "It was migrated, from another machine: the lineage has the migrations."
    return "It was never migrated."


def utc(value: float | None) -> str:
    """Format UTC seconds; ``-`` where a host reports no time of a calendar."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value)) if value else format.NONE
    except (OverflowError, OSError, ValueError):
        return format.NONE


def _summary(report: RunReport) -> str:
    run = report.run
    total = run.status.num_train_steps if run.status else 0
    newest = newest_checkpoint(run.usable)
    return facts(
        (
            ("state", run.state),
            ("reason", report.reason or run.remark),
            ("host", f"{run.host} {run_facts.hardware(run, '×')}".rstrip()),
            ("step", format.grouped(run.step) + (f" of {format.grouped(total)}" if total else "")),
            ("train/loss", format.loss(run_facts.loss(run))),
            ("started", utc(run_facts.started(run))),
            ("newest checkpoint", f"{newest.name}, {format.size(newest.size)}" if newest else "none"),
            ("stored in", run.store),
            ("project", run_facts.project(run)),
            ("tags", ", ".join(run_facts.tags(run))),
            ("owner", f"{run.fence.owner}, ownership {run.fence.epoch}" if run.fence else ""),
            ("problem", run.problem),
        )
    )


def _curves(report: RunReport) -> Iterator[str]:
    for metric in METRICS:
        lines = lines_of((report.run,), metric, STEP)
        if lines:
            yield svg(Chart(metric, lines))
        elif metric == METRICS[0]:
            yield paragraph(f"no values of {metric} yet", "dim")


def _lineage(report: RunReport) -> str:
    entries = report.run.lineage.entries if report.run.lineage else []
    if not entries:
        return paragraph("none written yet", "dim")
    heading = ("attempt", "ownership", "on", "devices", "first step", "last step", "from", "started", "migration")
    return table(
        heading,
        [
            (
                str(entry.attempt),
                str(entry.epoch),
                entry.target,
                f"{entry.devices} × {entry.device_kind}",
                format.grouped(entry.first_step),
                format.grouped(entry.last_step) if entry.last_step is not None else "now",
                entry.checkpoint or "fresh",
                utc(entry.started),
                entry.migration,
            )
            for entry in entries
        ],
    )


def _cost(report: RunReport) -> str:
    cost = report.cost
    if cost is None:
        return paragraph("No host has reported a process of the run.", "dim")
    rows = facts(
        (
            ("hosts", ", ".join(cost.hosts)),
            ("hours of processes", hours_text(cost.processes)),
            ("hours of training", hours_text(cost.training)),
            ("cost", money_text(cost.cost) if cost.cost is not None else "a host has no price_per_hour"),
        )
    )
    if report.migration_costs:
        heading = ("migration", "from", "to", "state", "preparation", "downtime", "cost")
        rows += table(heading, [cost_.cells() for cost_ in report.migration_costs])
    return rows + paragraph("Prices are those of the fleet file now, also for the past.", "dim")


def _config(report: RunReport) -> str:
    if not report.config:
        return paragraph("It could not be read.", "dim")
    changes = ""
    if report.config_changes:
        changes = element("h3", "Since the first attempt") + items(report.config_changes)
    return changes + element("div", table(("field", "value"), report.config), kind="config")
