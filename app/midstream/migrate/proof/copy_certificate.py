"""Certificate of a migration that copied the state, by evidence from the hosts.

The certificate has five claims. *State*: the root digest of the restored state is that of the sealed state. *Data*: the
next batch is the batch that the source would have used. *Reference losses*: fixed sequences have the same losses on
both accelerators, in float32 at the highest matmul precision; this does not need a running source. *Continuity*: losses
past the seal agree with the source's own, where it has any. *Environment*: both sides compute with the same versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from midstream.counts import agree, count
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.journal.facts import Sealed
from midstream.migrate.journal.plan import MATMUL_PRECISION, PRECISION, Plan
from midstream.migrate.proof.environment_claim import engine_environment_claim
from midstream_core import records
from midstream_core.json_types import LoggedRow
from midstream_core.precision import precision_of, rounds_products

REFERENCE_LOSS_TOLERANCE = 1e-4  # relative
FLOAT32, REDUCED = "f32", "bf16"
ROUNDED_PRODUCTS = "f32 with products in the accelerator's default precision"
CONTINUITY_TOLERANCE = {FLOAT32: 1e-4, REDUCED: 2e-2, ROUNDED_PRODUCTS: 2e-2}  # relative


def certify(
    plan: Plan,
    sealed: Sealed,
    restore: records.Restore,
    target_rows: Sequence[LoggedRow],
    source_rows: Sequence[LoggedRow],
    *,
    complete: bool = False,
    versions: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Certificate:
    """Issue the certificate of a migration.

    Args:
        plan: Plan of the migration.
        sealed: Seal of the source.
        restore: Restore evidence of the target.
        target_rows: Metric rows of the target that have a loss.
        source_rows: Metric rows of the source that have a loss.
        complete: The run was at its last step, so no batch is left.
        versions: Of packages, of the source's attempt and of the target's; empty where unknown.
    """
    step = sealed.step
    claims = (
        _state(sealed, restore),
        _data(step, restore, target_rows, complete),
        reference_losses(restore),
        _continuity(step, target_rows, source_rows, precision(plan)),
        engine_environment_claim(*versions),
    )
    return Certificate.issue(plan, sealed, claims)


def _verdict(holds: bool) -> str:
    return VERIFIED if holds else CLAIM_FAILED


def _state(sealed: Sealed, restore: records.Restore) -> Claim:
    same = restore.root_digest == sealed.root_digest and restore.step == sealed.step
    statement = (
        f"the restored state is the source's last state, root digest {restore.root_digest[:12]}"
        if same
        else f"restored step {restore.step}, root digest {restore.root_digest[:12]}; "
        f"the source's last step is {sealed.step}, root digest {sealed.root_digest[:12]}"
    )
    return Claim(
        "state",
        _verdict(same),
        statement,
        {
            "sealed": sealed.root_digest,
            "restored": restore.root_digest,
            "sealed_step": sealed.step,
            "restored_step": restore.step,
        },
    )


def _data(step: int, restore: records.Restore, rows: Sequence[LoggedRow], complete: bool) -> Claim:
    consumed = next((row.get("batch_digest", "") for row in rows if row["global_step"] == step), "")
    if complete and not rows:
        consumed = restore.batch_digest  # no batch is left: the next batches of source and target are compared
    digests = (restore.recorded_batch_digest, restore.batch_digest, consumed)
    same = len({*filter(None, digests)}) == 1  # one that is missing contradicts none
    statement = (
        f"batch {step} is the one that the source would have used next"
        if same and all(digests)
        else f"batch {step}: the source recorded {restore.recorded_batch_digest[:12] or 'nothing'}, "
        f"the target computed {restore.batch_digest[:12]} and consumed {consumed[:12] or 'nothing yet'}"
    )
    return Claim(
        "data",
        _verdict(same) if all(digests) or not same else NOT_CHECKED,
        statement,
        {"recorded": restore.recorded_batch_digest, "computed": restore.batch_digest, "consumed": consumed},
    )


def reference_losses(restore: records.Restore) -> Claim:
    """Compare the recorded losses of the fixed sequences with recomputed ones.

    The latter are computed after the restore.
    """
    pairs = list(zip(restore.recorded_losses, restore.recomputed_losses, strict=False))
    complete = bool(pairs) and len(restore.recorded_losses) == len(restore.recomputed_losses)
    worst = max((records.relative_difference(a, b) for a, b in pairs), default=float("inf"))
    holds = complete and worst <= REFERENCE_LOSS_TOLERANCE
    sequences = count(len(pairs), "fixed sequence")
    how = f", largest relative difference {worst:.1e}" if worst else ", bit for bit"
    statement = (
        f"{sequences} {agree(len(pairs), 'gives', 'give')} the same losses{how}"
        if holds
        else f"losses of {sequences} differ by up to {records.difference_text(worst)} "
        f"(allowed {REFERENCE_LOSS_TOLERANCE:.0e})"
        if complete
        else "the checkpoint has no complete reference losses"
    )
    return Claim(
        "reference losses",
        _verdict(holds) if complete else NOT_CHECKED,
        statement,
        {
            "recorded": list(restore.recorded_losses),
            "recomputed": list(restore.recomputed_losses),
            "largest_relative_difference": worst if complete else None,
            "tolerance": REFERENCE_LOSS_TOLERANCE,
        },
    )


def _continuity(step: int, target_rows: Sequence[LoggedRow], source_rows: Sequence[LoggedRow], precision: str) -> Claim:
    source_losses = {row["global_step"]: row["train/loss"] for row in source_rows if row["global_step"] >= step}
    pairs = [
        (row["global_step"], source_losses[row["global_step"]], row["train/loss"])
        for row in target_rows
        if row["global_step"] in source_losses
    ]
    pairs = [pair for pair in pairs if not records.both_nan(pair[1], pair[2])]
    if not pairs:
        what = "the source has no losses past the checkpoint to compare with"
        return Claim("continuity", NOT_CHECKED, what, needed=False)
    tolerance = CONTINUITY_TOLERANCE[precision]
    differences = [records.relative_difference(a, b) for _, a, b in pairs]
    worst = max(differences)
    allowed = f"{records.difference_text(worst)} (allowed {tolerance:.0e}, {precision})"
    return Claim(
        "continuity",
        _verdict(worst <= tolerance),
        f"{len(pairs)} losses past the checkpoint agree with the source's within {allowed}"
        if worst <= tolerance
        else f"losses past the checkpoint differ from the source's by up to {allowed}, "
        f"at step {pairs[differences.index(worst)][0]}",
        {"steps": [list(pair) for pair in pairs], "largest_relative_difference": worst, "tolerance": tolerance},
        needed=False,
    )


def precision(plan: Plan) -> str:
    """Return the key of the tolerance to compare losses with.

    The lower precision of source and target decides it.
    """
    values = {change.name: (change.before, change.after) for change in plan.shape.changes}
    policies = values.get(PRECISION, ("f32", "f32"))
    if any(precision_of(policy).reduced for policy in policies):
        return REDUCED
    products = values.get(MATMUL_PRECISION, (None, None))
    return ROUNDED_PRODUCTS if any(map(rounds_products, policies, products)) else FLOAT32
