"""Markdown page of a certificate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from midstream.migrate.journal.certificate import CLAIM_FAILED, COMPARED, NOT_CHECKED, VERIFIED, Certificate
from midstream.migrate.journal.downtime_report import DowntimeReport, shown_phase
from midstream.migrate.stages import DOWNTIME_PHASES
from midstream.printable import printable
from midstream_core.json_types import LoggedRow

VOID = "**Void**: the migration was rolled back, and the run continues on its source."
_MARKS = {VERIFIED: "✓", CLAIM_FAILED: "✗", NOT_CHECKED: "–"}


def page(proof: Certificate, curve: Sequence[LoggedRow], picture: str, report: DowntimeReport | None = None) -> str:
    """Format a certificate as Markdown, with the downtime and losses around the seam.

    ``picture`` is the file name of the SVG.
    """
    lines = [
        f"# {proof.run_id}: {proof.source} → {proof.target} at step {proof.step}",
        "",
        f"**{'Certified' if proof.valid else 'Not certified'}**"
        + (f" (not checked: {', '.join(proof.unchecked)})" if proof.unchecked else "")
        + f", migration `{proof.migration}`, ownership {proof.epoch},",
        f"issued {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(proof.issued))}.",
        "",
        f"Checkpoint `{proof.checkpoint}`, root digest `{proof.root_digest}`.",
        "",
        "| | claim | verdict |",
        "|---|---|---|",
    ]
    lines += [
        f"| {_MARKS[claim.verdict]} | {claim.name}: {claim.statement} | {claim.verdict} |" for claim in proof.claims
    ]
    source_losses = {
        step: loss
        for claim in proof.claims
        if claim.name in COMPARED
        for step, loss, _ in claim.evidence.get("steps", ())
    }
    if report is not None and report.total is not None:
        lines += ["", f"Downtime: {report.total:.1f} s.", "", "| phase | predicted (s) | measured (s) |"]
        lines += ["|---|---:|---:|"]
        lines += [
            f"| {shown_phase(name)} | {report.predicted.get(name, 0.0):.1f} | {report.measured.get(name, 0.0):.1f} |"
            for name in DOWNTIME_PHASES
            if report.predicted.get(name, 0.0) >= 0.05 or report.measured.get(name, 0.0) >= 0.05
        ]
        lines += [f"| **total** | {sum(report.predicted.values()):.1f} | {report.total:.1f} |"]
    lines += ["", f"![the loss before and after the migration]({picture})", "", "Losses around the seam:", ""]
    lines += [f"| step | train/loss | attempt | on {proof.source} |", "|---:|---:|---:|---:|"]
    seam = [row for row in curve if "train/loss" in row and abs(row["global_step"] - proof.step) <= 8]
    lines += [
        f"| {step} | {row['train/loss']!r} | {row['attempt']} | {source_losses.get(step, '')!s} |"
        for step, row in ((row["global_step"], row) for row in seam)
    ]
    return "\n".join(map(_markdown, lines)) + "\n"


def _markdown(line: str) -> str:
    """Escape a line of the page.

    Text from a host must not become HTML or control characters.
    """
    return printable(line).replace("<", "&lt;")
