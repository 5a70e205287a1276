"""The certificate: what was proven about a move, from evidence that is re-read, not remembered.

Four claims. *State*: the root digest of what was restored is that of what was sealed. *Data*: the next batch is the
batch that the source would have taken. *Witness*: fixed sequences give the same losses on both accelerators, in
float32 at the highest matmul precision, so the source need not be alive. *Trajectory*: losses past the seal agree
with the source's own, where it has any.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.migrate.model import (
    CLAIM_FAILED,
    DOWNTIME_PHASES,
    NOT_CHECKED,
    VERIFIED,
    Certificate,
    Claim,
    DowntimeReport,
    Plan,
)
from midstream.printable import printable
from midstream_engine import records

REFERENCE_LOSS_TOLERANCE = 1e-4  # relative
CONTINUITY_TOLERANCE = {"f32": 1e-4, "bf16": 2e-2}  # relative


def certify(
    plan: Plan,
    sealed: Mapping[str, Any],
    restore: records.Restore,
    target_rows: Sequence[Mapping[str, Any]],
    source_rows: Sequence[Mapping[str, Any]],
    *,
    complete: bool = False,
) -> Certificate:
    """The certificate for a move sealed at ``sealed`` (step, checkpoint, root_digest), from the target's restore
    evidence and the metric rows with losses of both sides. ``complete``: the run was at its end, no batch is left."""
    step = int(sealed["step"])
    claims = (
        _state(sealed, restore),
        _data(step, restore, target_rows, complete),
        reference_losses(restore),
        _continuity(step, target_rows, source_rows, precision(plan)),
    )
    return Certificate(
        migration=plan.migration,
        run_id=plan.run_id,
        source=plan.source,
        target=plan.target,
        step=step,
        checkpoint=str(sealed["checkpoint"]),
        root_digest=str(sealed["root_digest"]),
        epoch=plan.epoch,
        claims=claims,
        issued=time.time(),
    )


def _verdict(holds: bool) -> str:
    return VERIFIED if holds else CLAIM_FAILED


def _state(sealed: Mapping[str, Any], restore: records.Restore) -> Claim:
    same = restore.root_digest == sealed["root_digest"] and restore.step == sealed["step"]
    statement = (
        f"the restored state is the sealed state, root digest {restore.root_digest[:12]}"
        if same
        else f"restored step {restore.step}, root digest {restore.root_digest[:12]}; "
        f"sealed step {sealed['step']}, root digest {str(sealed['root_digest'])[:12]}"
    )
    return Claim(
        "state",
        _verdict(same),
        statement,
        {
            "sealed": sealed["root_digest"],
            "restored": restore.root_digest,
            "sealed_step": sealed["step"],
            "restored_step": restore.step,
        },
    )


def _data(step: int, restore: records.Restore, rows: Sequence[Mapping[str, Any]], complete: bool) -> Claim:
    consumed = next((row.get("batch_digest", "") for row in rows if row["global_step"] == step), "")
    if complete and not rows:
        consumed = restore.batch_digest  # nothing is left to consume: what both would take next is compared
    same = bool(consumed) and restore.recorded_batch_digest == restore.batch_digest == consumed
    statement = (
        f"batch {step} is the one that the source would have taken next"
        if same
        else f"batch {step}: the source recorded {restore.recorded_batch_digest[:12] or 'nothing'}, "
        f"the target computed {restore.batch_digest[:12]} and consumed {consumed[:12] or 'nothing yet'}"
    )
    return Claim(
        "data",
        _verdict(same),
        statement,
        {"recorded": restore.recorded_batch_digest, "computed": restore.batch_digest, "consumed": consumed},
    )


def reference_losses(restore: records.Restore) -> Claim:
    """Whether the fixed sequences gave the same losses when the state was restored."""
    pairs = list(zip(restore.recorded_losses, restore.recomputed_losses, strict=False))
    whole = bool(pairs) and len(restore.recorded_losses) == len(restore.recomputed_losses)
    worst = max((records.relative_difference(a, b) for a, b in pairs), default=float("inf"))
    holds = whole and worst <= REFERENCE_LOSS_TOLERANCE
    statement = (
        f"{len(pairs)} fixed sequences give the same losses, largest relative difference {worst:.1e}"
        if holds
        else f"losses of {len(pairs)} fixed sequences differ by up to {worst:.1e} relative"
        f" ({REFERENCE_LOSS_TOLERANCE:.0e})"
        if whole
        else "the checkpoint carries no complete reference losses"
    )
    return Claim(
        "reference losses",
        _verdict(holds) if whole else NOT_CHECKED,
        statement,
        {
            "recorded": list(restore.recorded_losses),
            "recomputed": list(restore.recomputed_losses),
            "largest_relative_difference": worst if whole else None,
            "tolerance": REFERENCE_LOSS_TOLERANCE,
        },
    )


def _continuity(
    step: int, target_rows: Sequence[Mapping[str, Any]], source_rows: Sequence[Mapping[str, Any]], precision: str
) -> Claim:
    theirs = {row["global_step"]: row["train/loss"] for row in source_rows if row["global_step"] >= step}
    pairs = [
        (row["global_step"], theirs[row["global_step"]], row["train/loss"])
        for row in target_rows
        if row["global_step"] in theirs
    ]
    if not pairs:
        return Claim("continuity", NOT_CHECKED, "the source has no losses past the seal to compare with")
    tolerance = CONTINUITY_TOLERANCE[precision]
    differences = [records.relative_difference(a, b) for _, a, b in pairs]
    worst = max(differences)
    allowed = f"{worst:.1e} relative (allowed {tolerance:.0e}, {precision})"
    return Claim(
        "continuity",
        _verdict(worst <= tolerance),
        f"{len(pairs)} losses past the seal agree with the source's within {allowed}"
        if worst <= tolerance
        else f"losses past the seal differ from the source's by up to {allowed}, "
        f"at step {pairs[differences.index(worst)][0]}",
        {"steps": [list(pair) for pair in pairs], "largest_relative_difference": worst, "tolerance": tolerance},
    )


def precision(plan: Plan) -> str:
    """``f32`` or ``bf16``: which band losses are compared in."""
    policy = next((change.after for change in plan.changes if change.name == "precision"), "f32")
    low = ("bfloat16", "bf16", "float16", "f16", "half")
    return "bf16" if any(word in policy.replace("=", ",").split(",") for word in low) else "f32"


_MARKS = {VERIFIED: "✓", CLAIM_FAILED: "✗", NOT_CHECKED: "–"}


def page(
    proof: Certificate, curve: Sequence[Mapping[str, Any]], picture: str, ledger: DowntimeReport | None = None
) -> str:
    """The certificate for people: Markdown, with the downtime and the losses around the seam. ``picture``: the SVG's
    file name."""
    lines = [
        f"# {proof.run_id}: {proof.source} → {proof.target} at step {proof.step}",
        "",
        f"**{'Certified' if proof.valid else 'Not certified'}**, migration `{proof.migration}`, epoch {proof.epoch},",
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
    theirs = {
        step: loss
        for claim in proof.claims
        if claim.name == "continuity"
        for step, loss, _ in claim.evidence.get("steps", ())
    }
    if ledger is not None and ledger.total is not None:
        lines += ["", f"The run stood still for {ledger.total:.1f} s.", "", "| seconds | predicted | measured |"]
        lines += ["|---|---:|---:|"]
        lines += [
            f"| {name} | {ledger.predicted.get(name, 0.0):.1f} | {ledger.measured.get(name, 0.0):.1f} |"
            for name in DOWNTIME_PHASES
            if ledger.predicted.get(name, 0.0) >= 0.05 or ledger.measured.get(name, 0.0) >= 0.05
        ]
        lines += [f"| **all** | {sum(ledger.predicted.values()):.1f} | {ledger.total:.1f} |"]
    lines += ["", f"![the loss before and after the move]({picture})", "", "Losses around the seam:", ""]
    lines += [f"| step | train/loss | attempt | the same step on {proof.source} |", "|---:|---:|---:|---:|"]
    seam = [row for row in curve if "train/loss" in row and abs(row["global_step"] - proof.step) <= 8]
    lines += [
        f"| {row['global_step']} | {row['train/loss']!r} | {row['attempt']} | {theirs.get(row['global_step'], '')!s} |"
        for row in seam
    ]
    return "\n".join(map(_markdown, lines)) + "\n"


def _markdown(line: str) -> str:
    """A line of the page; what a host said in it is shown as it stands, and no HTML."""
    return printable(line).replace("<", "&lt;")
