"""Certificate of a migration of another trainer's run.

It has what could be checked, and what would make the rest checkable.

*State*: the bytes that the trainer was started from are those that the source had written, SHA-256 at both ends. *Step*
and *learning rate* continue. *Replay overlap*: losses of the same steps on both sides. *Data*: digests of the batches,
where the script has the tap. *Environment*: versions on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from midstream.counts import agree, count
from midstream.errors import HostError
from midstream.hosts.host import Host
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.replay_overlap import LEARNING_RATE_TOLERANCE, Overlap, overlap_of
from midstream.migrate.records.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.records.facts import Facts, Sealed
from midstream.migrate.records.plan import Plan
from midstream.remote.runs import run_state, standby_state
from midstream_engine import records

ROWS_BEFORE = 64  # of the source before the compared ones: their differences give the band
RATE = "optim/learning_rate"
REPLAY = "replay.jsonl"
TAP = "midstream_tap in the training script records digests of the batches"

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Evidence:
    """Evidence of both hosts for a migration. Rows have a loss, in order.

    Attributes:
        source_rows: Of the source's last attempt, up to its end.
        target_rows: Of the attempt that restored the sealed checkpoint.
        rehearsed: Of the rehearsal on the target; empty in a cold migration.
        rehearsed_from: Step of the rehearsal's checkpoint.
        source_versions: Versions of the source's environment.
        target_versions: The same of the target.
    """

    source_rows: Rows
    target_rows: Rows
    rehearsed: Rows
    rehearsed_from: int
    source_versions: Mapping[str, str]
    target_versions: Mapping[str, str]


def read_evidence(
    source: Host | None, target: Host, plan: Plan, sealed: Sealed, attempt: int, facts: Facts
) -> Evidence:
    """Read the evidence from the hosts; ``source`` may be lost.

    Args:
        source: Host of the source; None: lost.
        target: Host of the target.
        plan: The plan of the migration.
        sealed: The state that the source was sealed with.
        attempt: Number of the attempt on the target that restored it.
        facts: Facts of the migration, by which the rehearsal is found.
    """
    begun = facts.rehearsal.step if facts.rehearsal is not None else sealed.step
    first = max(0, min(begun, sealed.step) - ROWS_BEFORE)
    source_rows: Rows = ()
    source_versions: Mapping[str, str] = {}
    if source is not None:
        try:
            source_rows = restore_evidence.losses(source, plan.run_id, sealed.attempt, first)
            source_versions = _versions(source, plan.run_id, sealed.attempt)
        except HostError:
            source_rows = ()
    rehearsed: Rows = ()
    if facts.standby_attempt is not None and facts.rehearsal is not None:
        rehearsed = rehearsal_rows(target, plan.run_id, facts.standby_attempt, facts.rehearsal.step)
    return Evidence(
        source_rows,
        restore_evidence.losses(target, plan.run_id, attempt, sealed.step),
        rehearsed,
        begun,
        source_versions,
        _versions(target, plan.run_id, attempt),
    )


def rehearsal_rows(target: Host, run_id: str, attempt: int, first: int) -> Rows:
    """Return the rows of a rehearsal on the target."""
    return target.call(standby_state.rows)(
        root=target.root, run_id=run_id, attempt=attempt, name=REPLAY, offset=0, first=first
    ).rows


def _versions(host: Host, run_id: str, attempt: int) -> Mapping[str, str]:
    found = host.call(run_state.status)(root=host.root, run_id=run_id, attempt=attempt).status
    return found.versions if found is not None else {}


def certify(
    plan: Plan, sealed: Sealed, restore: records.Restore, evidence: Evidence, *, complete: bool = False
) -> Certificate:
    """Issue the certificate.

    Args:
        plan: Plan of the migration.
        sealed: Seal of the source.
        restore: Restore evidence of the target.
        evidence: What both hosts have.
        complete: The run was at its last step, so the target logs no row.
    """
    rehearsed = overlap_of(evidence.source_rows, evidence.rehearsed)
    past = overlap_of(evidence.source_rows, evidence.target_rows)
    claims = (
        _state(sealed, restore),
        _step(sealed.step, evidence, complete=complete),
        _learning_rate(sealed.step, evidence, (rehearsed, past)),
        overlap_claim(plan, rehearsed, past),
        _data(rehearsed, past),
        _environment(evidence),
    )
    return Certificate.issue(plan, sealed, claims)


def _state(sealed: Sealed, restore: records.Restore) -> Claim:
    same = restore.root_digest == sealed.root_digest and restore.step == sealed.step
    return Claim(
        "state",
        VERIFIED if same else CLAIM_FAILED,
        f"the trainer was started from the bytes that the source wrote, root digest {restore.root_digest[:12]}"
        if same
        else f"started from step {restore.step}, root digest {restore.root_digest[:12]}; "
        f"sealed step {sealed.step}, root digest {sealed.root_digest[:12]}",
        {"sealed": sealed.root_digest, "restored": restore.root_digest},
    )


def _step(step: int, evidence: Evidence, *, complete: bool) -> Claim:
    """Check that the first logged step is the next one, within the logging interval."""
    rows = evidence.target_rows
    if complete and not rows:
        return Claim("step", VERIFIED, f"the run was complete at step {step}: nothing was left to train")
    if not rows:
        return Claim("step", NOT_CHECKED, "the target has logged no step")
    steps = [row["global_step"] for row in (*evidence.source_rows, *rows)]
    gaps = [after - before for before, after in pairwise(steps) if after > before]
    interval, first = max(1, min(gaps, default=1)), rows[0]["global_step"]
    continues = step <= first < step + interval
    return Claim(
        "step",
        VERIFIED if continues else CLAIM_FAILED,
        f"the first step that the target logged is {first}, after {count(step, 'update')}"
        if continues
        else f"the first step that the target logged is {first}; the checkpoint has {count(step, 'update')}",
        {"first": first, "checkpoint": step, "interval": interval},
    )


def _learning_rate(step: int, evidence: Evidence, overlaps: Sequence[Overlap]) -> Claim:
    """Compare the learning rates of the same steps.

    Where there are none, compare the first one of the target with the source's last ones.
    """
    pairs = [pair for each in overlaps for pair in each.learning_rates]
    if pairs:
        worst = max(records.relative_difference(one, other) for _, one, other in pairs)
        same = worst <= LEARNING_RATE_TOLERANCE
        wrong = next((p for p in pairs if records.relative_difference(p[1], p[2]) > LEARNING_RATE_TOLERANCE), pairs[0])
        return Claim(
            "learning rate",
            VERIFIED if same else CLAIM_FAILED,
            f"{count(len(pairs), 'step')} {agree(len(pairs), 'has', 'have')} the source's learning rate"
            if same
            else f"{wrong[2]:.6g} at step {wrong[0]}, the source had {wrong[1]:.6g}",
            {"steps": [list(pair) for pair in pairs]},
        )
    before = [pair for pair in _rates(evidence.source_rows) if pair[0] < step]
    after = _rates(evidence.target_rows)
    if len(before) < 2 or not after:
        return Claim("learning rate", NOT_CHECKED, "it is not logged (log it with the loss)", needed=False)
    slopes = [abs(b - a) / (t - s) for (s, a), (t, b) in pairwise(before[-9:]) if t > s]
    (last_step, last), (first_step, first) = before[-1], after[0]
    allowed = 2 * max(slopes, default=0.0) * (first_step - last_step) + LEARNING_RATE_TOLERANCE * abs(last)
    continues = abs(first - last) <= allowed
    return Claim(
        "learning rate",
        VERIFIED if continues else CLAIM_FAILED,
        f"{last:.6g} at step {last_step}, then {first:.6g} at step {first_step}"
        + ("" if continues else ": it has never changed so much"),
        {"before": last, "after": first, "allowed": allowed},
    )


def _rates(rows: Rows) -> list[tuple[int, float]]:
    """Return (step, learning rate) of the rows where it is a number."""
    return [(row["global_step"], row[RATE]) for row in rows if RATE in row and not math.isnan(row[RATE])]


def overlap_claim(plan: Plan, *overlaps: Overlap) -> Claim:
    """Compare losses of the steps that both sides did."""
    accepted = plan.trainer is not None and plan.trainer.losses_may_differ
    steps = [step for each in overlaps for step in each.steps]
    if not steps:
        hint = "--mode warm compares those of a rehearsal" if not plan.has_standby else "the rehearsal logged too few"
        return Claim("replay overlap", NOT_CHECKED, f"no step with a loss was done by both ({hint})", needed=False)
    worst = max(each.worst for each in overlaps)
    band = min(each.band for each in overlaps if each.steps)
    holds, identical = all(each.agrees for each in overlaps), all(each.identical for each in overlaps)
    number = count(len(steps), "loss", "losses")
    if identical:
        what = f"{number} of the same steps {agree(len(steps), 'is', 'are')} equal bit by bit"
    elif holds:
        why = "" if plan.trainer is None or plan.trainer.same_world else ", on another number of processes"
        what = f"{number} of the same steps agree within {worst:.1e} relative (allowed {band:.0e}{why})"
    else:
        first = next(each.first_difference for each in overlaps if each.first_difference is not None)
        what = (
            f"losses differ from the source's by up to {records.difference_text(worst)} from step {first} on "
            f"(allowed {band:.0e}): the order of the data, or the random state, begins again"
        )
        if plan.trainer is not None and plan.trainer.advice:
            what += f" ({plan.trainer.advice[0]})"
    return Claim(
        "replay overlap",
        VERIFIED if holds else CLAIM_FAILED,
        what,
        {"steps": [list(step) for step in steps], "largest_relative_difference": worst, "tolerance": band},
        needed=False,
        agreed=accepted,
    )


def _data(*overlaps: Overlap) -> Claim:
    pairs = [pair for each in overlaps for pair in each.batches]
    if not pairs:
        return Claim("data", NOT_CHECKED, f"no step has digests of its batch on both sides ({TAP})", needed=False)
    wrong = next((pair for pair in pairs if pair[1] != pair[2]), None)
    return Claim(
        "data",
        VERIFIED if wrong is None else CLAIM_FAILED,
        f"{count(len(pairs), 'step')} consumed the batches that the source consumed"
        if wrong is None
        else f"step {wrong[0]} consumed another batch than on the source",
        {"steps": [list(pair) for pair in pairs]},
        needed=False,
    )


def _environment(evidence: Evidence) -> Claim:
    before, after = evidence.source_versions, evidence.target_versions
    names = sorted(before.keys() & after.keys())
    if not names:
        return Claim("environment", NOT_CHECKED, "the versions of one side are not known", needed=False)
    changed = [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]
    listed = ", ".join(f"{name} {after[name]}" for name in names)
    return Claim(
        "environment",
        CLAIM_FAILED if changed else VERIFIED,
        f"versions differ: {', '.join(changed)}" if changed else f"the same versions: {listed}",
        {"source": dict(before), "target": dict(after)},
        needed=False,
        agreed=True,  # named, and no reason to go back: results are compared by the overlap
    )
