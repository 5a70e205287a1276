"""Migrations of a report: certificate, curve at the seam, downtime."""

from __future__ import annotations

from collections.abc import Iterator

from midstream import format
from midstream.migrate.journal.certificate import CLAIM_FAILED, VERIFIED, Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport, shown_phase
from midstream.migrate.journal.migration_view import CERTIFIED, VOID, MigrationView
from midstream.migrate.proof.curve_picture import seam
from midstream.migrate.stages import DOWNTIME_PHASES
from midstream.report.html import element, facts, paragraph, table, text
from midstream.report.run_report import RunReport

_VERDICTS = {CERTIFIED: "certified", VOID: "void: it was rolled back", "": "no certificate"}


def migration_sections(report: RunReport) -> Iterator[str]:
    """Yield the table of a run's migrations, then one section for each, oldest first."""
    if not report.migrations:
        return
    heading = ("migration", "from", "to", "mode", "state", "at step", "downtime", "certificate")
    yield table(heading, [_row(view) for view in report.migrations])
    for view in report.migrations:
        plan = view.plan
        yield element("h3", text(f"{plan.source} → {plan.target}: {view.migration}"))
        if view.error:
            yield paragraph(view.error, "bad")
        for line in view.damage:
            yield paragraph(line, "bad")
        if view.certificate is not None:
            yield from _certificate(view, view.certificate, report)
        if view.downtime is not None:
            yield _downtime(view.downtime)


def _row(view: MigrationView) -> tuple[str, ...]:
    total = view.downtime.total if view.downtime else None
    return (
        view.migration,
        view.plan.source,
        view.plan.target,
        view.plan.identity.mode,
        view.state,
        format.grouped(view.sealed_step),
        format.seconds(total),
        _VERDICTS.get(view.verdict, "not certified"),
    )


def _certificate(view: MigrationView, proof: Certificate, report: RunReport) -> Iterator[str]:
    good = view.verdict == CERTIFIED
    yield paragraph(f"Certificate: {_VERDICTS.get(view.verdict, 'not certified')}", "good" if good else "bad")
    yield facts(
        (
            ("checkpoint", proof.checkpoint),
            ("root digest", proof.root_digest),
            ("ownership", str(proof.epoch)),
            ("not checked", ", ".join(proof.unchecked)),
        )
    )
    rows = [
        element(
            "tr",
            element("td", text(claim.name)),
            element("td", text(claim.verdict), kind={VERIFIED: "good", CLAIM_FAILED: "bad"}.get(claim.verdict, "dim")),
            element("td", text(claim.statement)),
        )
        for claim in proof.claims
    ]
    yield element("table", element("thead", "<tr><th>claim</th><th>verdict</th><th>evidence</th></tr>"), *rows)
    yield seam(proof, report.run.curve)


def _downtime(report: DowntimeReport) -> str:
    if report.total is None:
        return paragraph("The downtime was not measured.", "dim")
    rows = [
        (shown_phase(name), f"{report.predicted.get(name, 0.0):.1f}", f"{report.measured.get(name, 0.0):.1f}")
        for name in DOWNTIME_PHASES
        if report.predicted.get(name, 0.0) >= 0.05 or report.measured.get(name, 0.0) >= 0.05
    ]
    rows.append(("total", f"{sum(report.predicted.values()):.1f}", f"{report.total:.1f}"))
    return element("h4", "Downtime") + table(("phase", "predicted (s)", "measured (s)"), rows)
