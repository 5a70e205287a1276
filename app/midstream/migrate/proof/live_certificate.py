"""Certificate of a live migration, whose state the target recomputed, not copied.

The claims are the five of `copy_certificate`, from other evidence. *State*: the replay began with the run's own state,
by its root digest. *Data*: each batch of the replay is the source's. *Reference losses*: recomputed where the replay
began. *Continuity*: the losses of all steps that both did agree within the tolerance; the parameter drift at the
takeover is reported with it. Each process of a group compares its own shards: one that is far from the sealed shards
while those of the others are near is not the run's, and is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from midstream.counts import count
from midstream.hosts.host import Host
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.journal.facts import Facts, Sealed, StartingPoint, required
from midstream.migrate.journal.plan import Plan
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.copy_certificate import CONTINUITY_TOLERANCE, precision, reference_losses
from midstream.migrate.proof.environment_claim import engine_environment_claim
from midstream_core import records
from midstream_core.json_types import JsonObject, LoggedRow
from midstream_host.runs import run_state, standby_state
from midstream_host.runs.losses import MetricsRow

DRIFT_TIMEOUT = 300.0  # seconds in which the target reads the parameters of the sealed checkpoint
# The same update rounds alike in all shards. One is not the run's that is so many times farther from the sealed ones
# than each of the others, and farther than so many tolerances of the losses.
SHARD_RATIO = 100.0
SHARD_TOLERANCES = 10.0


def gather(
    source: Host | None,
    target: Host,
    plan: Plan,
    sealed: Sealed,
    facts: Facts,
    *,
    drift_timeout: float = DRIFT_TIMEOUT,
) -> Certificate | None:
    """Issue the certificate from the evidence on the hosts.

    Return None where the target has no evidence of the replay's start.

    Args:
        source: Source host; None: no step is compared.
        target: Target host.
        plan: Plan of the migration.
        sealed: Seal of the source.
        facts: Facts of the journal: ``standby_attempt``, ``rehearsal``, ``takeover_step``.
        drift_timeout: Seconds to wait for the parameter drift, which the target's engine computes.
    """
    rehearsal = required(facts.rehearsal, "rehearsal")
    attempt = required(facts.standby_attempt, "standby_attempt")
    drift = target.call(standby_state.parameter_drift, timeout=2 * drift_timeout + 60.0)(
        target.root, plan.run_id, attempt, expected=sealed.step == facts.takeover_step, patience=drift_timeout
    )
    restore = target.call(run_state.restore_evidence)(target.root, plan.run_id, attempt)
    if restore is None or restore_evidence.is_own(restore, sealed):
        return None
    theirs: list[MetricsRow] = []
    if source is not None:
        # Also past the seal: a source that ended by itself may be sealed at the checkpoint that the replay began with.
        theirs = restore_evidence.losses(source, plan.run_id, sealed.attempt, rehearsal.step)
    ours = target.call(standby_state.rows, timeout=300.0)(
        target.root, plan.run_id, attempt, name="replay.jsonl", offset=0, first=rehearsal.step
    )
    return certify(
        plan,
        sealed,
        rehearsal,
        restore,
        theirs,
        ours.rows,
        drift,
        (
            restore_evidence.versions(source, plan.run_id, sealed.attempt),
            restore_evidence.versions(target, plan.run_id, attempt),
        ),
    )


def certify(
    plan: Plan,
    sealed: Sealed,
    rehearsal: StartingPoint,
    restore: records.Restore,
    source_rows: Sequence[LoggedRow],
    replica_rows: Sequence[LoggedRow],
    drift: records.ParameterDrift | None,
    versions: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
) -> Certificate:
    """Issue the certificate of a live migration.

    Args:
        plan: Plan of the migration.
        sealed: Seal of the source.
        rehearsal: Checkpoint that the replay began with.
        restore: Restore evidence of the replica.
        source_rows: Metric rows of the source from there on.
        replica_rows: Metric rows of the replica from there on.
        drift: Parameter drift at the takeover; None: not measured.
        versions: Of packages, of the source's attempt and of the target's; empty where unknown.
    """
    if drift is not None and drift.root_digest != sealed.root_digest:
        drift = None  # of another checkpoint of that name
    claims = (
        _state(rehearsal, restore, sealed.step),
        _data(restore, source_rows, replica_rows),
        reference_losses(restore),
        _continuity(plan, source_rows, replica_rows, drift),
        engine_environment_claim(*versions),
    )
    return Certificate.issue(plan, sealed, claims)


def _state(rehearsal: StartingPoint, restore: records.Restore, step: int) -> Claim:
    same = restore.root_digest == rehearsal.root_digest and restore.checkpoint == rehearsal.name
    statement = (
        f"recomputed up to step {step} from the run's own {restore.checkpoint}, root digest "
        f"{restore.root_digest[:12]}; the source's last state was not copied"
        if same
        else f"the replay began with {restore.checkpoint}, root digest {restore.root_digest[:12]}; "
        f"the run's is {rehearsal.name}, root digest {rehearsal.root_digest[:12]}"
    )
    evidence = {"start": rehearsal.root_digest, "restored": restore.root_digest, "start_step": restore.step}
    return Claim("state", VERIFIED if same else CLAIM_FAILED, statement, evidence)


def _pairs(
    source_rows: Sequence[LoggedRow], replica_rows: Sequence[LoggedRow]
) -> list[tuple[int, LoggedRow, LoggedRow]]:
    """Return (step, source's row, replica's row) of the steps that both did."""
    theirs = {row["global_step"]: row for row in source_rows if "train/loss" in row}
    return [
        (row["global_step"], theirs[row["global_step"]], row) for row in replica_rows if row["global_step"] in theirs
    ]


def _data(
    restore: records.Restore,
    source_rows: Sequence[JsonObject],
    replica_rows: Sequence[JsonObject],
) -> Claim:
    pairs = _pairs(source_rows, replica_rows)
    other = [step for step, theirs, ours in pairs if theirs["batch_digest"] != ours["batch_digest"]]
    failed = bool(other) or restore.batch_digest != restore.recorded_batch_digest
    verdict = CLAIM_FAILED if failed else VERIFIED if pairs else NOT_CHECKED
    evidence = {"steps": len(pairs), "first": pairs[0][0] if pairs else None, "last": pairs[-1][0] if pairs else None}
    if verdict == VERIFIED:
        statement = f"all {len(pairs)} batches from step {pairs[0][0]} to {pairs[-1][0]} are the source's"
    elif other:
        statement = f"batch {other[0]} is not the source's, nor are {len(other) - 1} more of {len(pairs)}"
    else:
        statement = (
            f"batch {restore.step} is not the one that was recorded" if failed else "no rows show a step done by both"
        )
    return Claim("data", verdict, statement, evidence)


def _continuity(
    plan: Plan,
    source_rows: Sequence[JsonObject],
    replica_rows: Sequence[JsonObject],
    drift: records.ParameterDrift | None,
) -> Claim:
    pairs = [
        (step, theirs, ours)
        for step, theirs, ours in _pairs(source_rows, replica_rows)
        if not records.both_nan(theirs["train/loss"], ours["train/loss"])
    ]
    if not pairs:
        return Claim("continuity", NOT_CHECKED, "no step with a loss was done by both", needed=False)
    kind = precision(plan)
    tolerance = CONTINUITY_TOLERANCE[kind]
    differences = [records.relative_difference(a["train/loss"], b["train/loss"]) for _, a, b in pairs]
    worst = max(differences)
    difference = f"{records.difference_text(worst)} (allowed {tolerance:.0e}, {kind})"
    strange = _strange_shard(drift, tolerance) if drift is not None else None
    if worst > tolerance:
        at = pairs[differences.index(worst)][0]
        statement = f"losses differ from the source's by up to {difference}, at step {at}; {_distance(drift)}"
    elif strange is not None:
        statement = (
            f"the shard of process {strange.process} ({strange.host}) is not the run's: its parameters are "
            f"{strange.distance:.1e} apart from the sealed ones (relative; worst array {strange.worst_array}, "
            f"{strange.worst:.1e}), and those of each other process less than 1/{SHARD_RATIO:.0f} of that"
        )
    else:
        statement = f"{len(pairs)} losses agree with the source's within {difference}; {_distance(drift)}"
    evidence = {
        "steps": [[step, theirs["train/loss"], ours["train/loss"]] for step, theirs, ours in pairs[-64:]],
        "compared": len(pairs),
        "largest_relative_difference": worst,
        "tolerance": tolerance,
        "parameter_drift": None if drift is None else drift.to_json(),
    }
    holds = worst <= tolerance and strange is None
    return Claim("continuity", VERIFIED if holds else CLAIM_FAILED, statement, evidence, needed=False)


def _distance(drift: records.ParameterDrift | None) -> str:
    """Return the parameter drift as the end of a statement."""
    if drift is None:
        return "parameter drift was not measured"
    line = (
        f"parameters are {drift.distance:.1e} apart at step {drift.step} (relative; worst array "
        f"{drift.worst_array}, {drift.worst:.1e})"
    )
    shards = drift.shard_drifts
    if not shards:
        return line
    far = max(shards, key=_of_shard)
    where = f"process {far.process} ({far.host})"
    return f"{line}, compared in {count(len(shards), 'shard')}: at most {far.distance:.1e}, that of {where}"


def _of_shard(shard: records.ShardDrift) -> float:
    """Return its distance; infinity where it is not a number."""
    return math.inf if math.isnan(shard.distance) else shard.distance


def _strange_shard(drift: records.ParameterDrift, tolerance: float) -> records.ShardDrift | None:
    """Return the shard that was not computed as the others were; None without one."""
    shards = sorted(drift.shard_drifts, key=_of_shard)
    if len(shards) < 2:
        return None
    far = _of_shard(shards[-1])
    strange = far > SHARD_TOLERANCES * tolerance and far > SHARD_RATIO * _of_shard(shards[-2])
    return shards[-1] if strange else None
