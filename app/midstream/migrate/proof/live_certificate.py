"""The certificate of a live migration: the state was computed twice, not copied, and that is what it says.

The same four claims, from other evidence. *State*: the replay began with the run's own state, by its root digest.
*Data*: every batch of the replay is the source's. *Witness*: at the beginning, as ever. *Trajectory*: the losses of
every step that both did lie within the band, and how far the parameters are apart where the run crosses over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from midstream.migrate.model import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Claim, Plan
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.certificate import CONTINUITY_TOLERANCE, precision, reference_losses
from midstream_engine import records

if TYPE_CHECKING:
    from midstream.hosts.host import Host


CROSSING_TIMEOUT = 300.0  # seconds in which the target reads the parameters of the sealed checkpoint


def gather(
    source: Host | None,
    target: Host,
    plan: Plan,
    sealed: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    patience: float = CROSSING_TIMEOUT,
) -> Certificate | None:
    """The certificate from what lies on the hosts; None where the target's attempt left nothing of its start. ``facts``
    are the journal's: ``standby_attempt``, ``rehearsal``, ``crossing_step``. The distance of the parameters, which the
    target computes by itself, is waited for. Without the ``source`` no step is compared."""
    rehearsal, attempt = facts["rehearsal"], int(facts["standby_attempt"])
    there = {"root": target.root, "run_id": plan.run_id, "attempt": attempt}
    crossing = target.call(
        "runs.standby_state.parameter_drift",
        **there,
        expected=sealed["step"] == facts.get("crossing_step"),
        patience=patience,
        timeout=2 * patience + 60.0,
    )
    restore = target.call("runs.run_state.restore_evidence", **there)
    if restore is None:
        return None
    theirs: list[dict[str, Any]] = []
    if source is not None:
        theirs = restore_evidence.losses(source, plan.run_id, sealed["attempt"], rehearsal["step"], sealed["step"] - 1)
    ours = target.call(
        "runs.standby_state.rows", **there, name="replay.jsonl", offset=0, first=rehearsal["step"], timeout=300.0
    )
    return certify(
        plan,
        sealed,
        rehearsal,
        records.Restore.from_json(restore, f"{target.name}: restore.json of attempt {attempt}"),
        theirs,
        ours["rows"],
        None if crossing is None else records.ParameterDrift.from_json(crossing, "parameter_drift.json"),
    )


def certify(
    plan: Plan,
    sealed: Mapping[str, Any],
    rehearsal: Mapping[str, Any],
    restore: records.Restore,
    source_rows: Sequence[Mapping[str, Any]],
    shadow_rows: Sequence[Mapping[str, Any]],
    crossing: records.ParameterDrift | None,
) -> Certificate:
    """``rehearsal`` is the checkpoint (name, step, root_digest) that the replay began with; the rows are both sides' of
    the steps from there on; ``crossing`` is None where the distance could not be measured."""
    claims = (
        _state(rehearsal, restore, int(sealed["step"])),
        _data(restore, source_rows, shadow_rows),
        reference_losses(restore),
        _continuity(plan, source_rows, shadow_rows, crossing),
    )
    return Certificate(
        migration=plan.migration,
        run_id=plan.run_id,
        source=plan.source,
        target=plan.target,
        step=int(sealed["step"]),
        checkpoint=str(sealed["checkpoint"]),
        root_digest=str(sealed["root_digest"]),
        epoch=plan.epoch,
        claims=claims,
        issued=time.time(),
    )


def _state(rehearsal: Mapping[str, Any], restore: records.Restore, step: int) -> Claim:
    same = restore.root_digest == rehearsal["root_digest"] and restore.checkpoint == rehearsal["name"]
    statement = (
        f"computed anew up to step {step} from the run's own {restore.checkpoint}, root digest "
        f"{restore.root_digest[:12]}; the sealed state was not copied"
        if same
        else f"the replay began with {restore.checkpoint}, root digest {restore.root_digest[:12]}; "
        f"the run's is {rehearsal['name']}, root digest {str(rehearsal['root_digest'])[:12]}"
    )
    evidence = {"start": rehearsal["root_digest"], "restored": restore.root_digest, "start_step": restore.step}
    return Claim("state", VERIFIED if same else CLAIM_FAILED, statement, evidence)


def _pairs(
    source_rows: Sequence[Mapping[str, Any]], shadow_rows: Sequence[Mapping[str, Any]]
) -> list[tuple[int, Mapping[str, Any], Mapping[str, Any]]]:
    """(step, source's row, shadow's row) of the steps that both did."""
    theirs = {row["global_step"]: row for row in source_rows if "train/loss" in row}
    return [
        (row["global_step"], theirs[row["global_step"]], row) for row in shadow_rows if row["global_step"] in theirs
    ]


def _data(
    restore: records.Restore, source_rows: Sequence[Mapping[str, Any]], shadow_rows: Sequence[Mapping[str, Any]]
) -> Claim:
    pairs = _pairs(source_rows, shadow_rows)
    other = [step for step, theirs, ours in pairs if theirs["batch_digest"] != ours["batch_digest"]]
    same = bool(pairs) and not other and restore.batch_digest == restore.recorded_batch_digest
    evidence = {"steps": len(pairs), "first": pairs[0][0] if pairs else None, "last": pairs[-1][0] if pairs else None}
    if same:
        statement = f"all {len(pairs)} batches from step {pairs[0][0]} to {pairs[-1][0]} are the source's"
    elif other:
        statement = f"batch {other[0]} is not the source's, and {len(other) - 1} more of {len(pairs)}"
    else:
        statement = (
            "no step was done by both" if not pairs else f"batch {restore.step} is not the one that was recorded"
        )
    return Claim("data", VERIFIED if same else CLAIM_FAILED, statement, evidence)


def _continuity(
    plan: Plan,
    source_rows: Sequence[Mapping[str, Any]],
    shadow_rows: Sequence[Mapping[str, Any]],
    crossing: records.ParameterDrift | None,
) -> Claim:
    pairs = _pairs(source_rows, shadow_rows)
    if not pairs:
        return Claim("continuity", NOT_CHECKED, "no step was done by both")
    kind = precision(plan)
    tolerance = CONTINUITY_TOLERANCE[kind]
    differences = [records.relative_difference(a["train/loss"], b["train/loss"]) for _, a, b in pairs]
    worst = max(differences)
    far = (
        f"parameters are {crossing.distance:.1e} apart at step {crossing.step} (relative; worst array "
        f"{crossing.worst_array}, {crossing.worst:.1e})"
        if crossing is not None
        else "the distance of the parameters was not measured"
    )
    apart = f"{worst:.1e} relative (allowed {tolerance:.0e}, {kind})"
    statement = (
        f"{len(pairs)} losses agree with the source's within {apart}; {far}"
        if worst <= tolerance
        else f"losses differ from the source's by up to {apart}, at step {pairs[differences.index(worst)][0]}; {far}"
    )
    evidence = {
        "steps": [[step, theirs["train/loss"], ours["train/loss"]] for step, theirs, ours in pairs[-64:]],
        "compared": len(pairs),
        "largest_relative_difference": worst,
        "tolerance": tolerance,
        "crossing": None if crossing is None else crossing.to_json(),
    }
    return Claim("continuity", VERIFIED if worst <= tolerance else CLAIM_FAILED, statement, evidence)
