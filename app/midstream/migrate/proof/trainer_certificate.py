"""Certificate of another trainer's run: what was checked, and how to check more.

*State*: the bytes that the trainer was started from are those that the source had written, SHA-256 at both ends. *Step*
and *learning rate* continue, by all that the trainer wrote since its start. *Checkpoint read*: a process opened its
files. *Loss level*: the first losses are in the range of the last ones. *Replay overlap*: losses of the same steps on
both sides. *Data*: digests of the batches, where the script has the tap. *Curve*: no row before the seal is missing.
*Environment*: versions on both sides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from midstream.counts import agree, count
from midstream.errors import HostError
from midstream.hosts.host import Host
from midstream.migrate.journal.certificate import CLAIM_FAILED, NOT_CHECKED, VERIFIED, Certificate, Claim
from midstream.migrate.journal.facts import Facts, Sealed
from midstream.migrate.journal.plan import Plan
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.environment_claim import environment_claim
from midstream.migrate.proof.first_step import first_step
from midstream.migrate.proof.global_batch_claim import global_batch_claim
from midstream.migrate.proof.overlap_claim import overlap_claim
from midstream.migrate.proof.replay_overlap import LEARNING_RATE_TOLERANCE, Overlap, overlap_of
from midstream_core import records
from midstream_core.json_types import LoggedRow
from midstream_host.runs import run_state, standby_state
from midstream_host.trainers import recorded_epoch
from midstream_host.trainers.recorded_epoch import RecordedEpoch

ROWS_BEFORE = 64  # of the source before the compared ones: their differences give the band
LEVEL_BEFORE, LEVEL_AFTER = 16, 4  # rows whose losses are compared
LEVEL_MARGIN = 3.0  # times the range of the source's losses
RATE = "optim/learning_rate"
REPLAY = "replay.jsonl"
TAP = "midstream_tap in the training script records digests of the batches"

Rows = Sequence[LoggedRow]


@dataclass(frozen=True)
class Evidence:
    """Evidence of both hosts for a migration. Rows have a loss, in order.

    Attributes:
        source_rows: Of the source's last attempt, up to its end.
        target_rows: Of the attempt that restored the sealed checkpoint.
        since_start: What its trainer did since its start; None where the target's midstream does not record it.
        rehearsed: Of the rehearsal on the target; empty in a cold migration.
        rehearsed_from: Step of the rehearsal's checkpoint.
        source_versions: Versions of the source's environment.
        target_versions: The same of the target.
        epoch: What the migrated checkpoint says of its epochs, where it is of transformers' Trainer.
    """

    source_rows: Rows
    target_rows: Rows
    since_start: records.TrainerEvidence | None
    rehearsed: Rows
    rehearsed_from: int
    source_versions: Mapping[str, str]
    target_versions: Mapping[str, str]
    epoch: RecordedEpoch | None = None


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
            source_versions = restore_evidence.versions(source, plan.run_id, sealed.attempt)
        except HostError:
            source_rows = ()
    rehearsed: Rows = ()
    if facts.standby_attempt is not None and facts.rehearsal is not None:
        rehearsed = rehearsal_rows(target, plan.run_id, facts.standby_attempt, facts.rehearsal.step)
    return Evidence(
        source_rows,
        restore_evidence.losses(target, plan.run_id, attempt, sealed.step),
        target.call(run_state.trainer_evidence)(root=target.root, run_id=plan.run_id, attempt=attempt),
        rehearsed,
        begun,
        source_versions,
        restore_evidence.versions(target, plan.run_id, attempt),
        target.call(recorded_epoch.recorded_epoch)(root=target.root, run_id=plan.run_id, checkpoint=sealed.checkpoint),
    )


def rehearsal_rows(target: Host, run_id: str, attempt: int, first: int) -> Rows:
    """Return the rows of a rehearsal on the target."""
    return target.call(standby_state.rows)(
        root=target.root, run_id=run_id, attempt=attempt, name=REPLAY, offset=0, first=first
    ).rows


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
    rehearsed = overlap_of(evidence.source_rows, evidence.rehearsed, evidence.rehearsed_from)
    past = overlap_of(evidence.source_rows, evidence.target_rows, sealed.step)
    claims = (
        _state(sealed, restore),
        _step(sealed.step, evidence, (rehearsed, past), complete=complete),
        _checkpoint_read(evidence, complete=complete),
        _learning_rate(sealed.step, evidence, (rehearsed, past)),
        _loss_level(sealed.step, evidence),
        global_batch_claim(
            plan.trainer,
            evidence.source_rows,
            evidence.target_rows,
            evidence.rehearsed,
            (rehearsed, past),
            evidence.epoch,
        ),
        overlap_claim(plan, rehearsed, past),
        _data(rehearsed, past),
        _curve(sealed.step, evidence),
        environment_claim(evidence.source_versions, evidence.target_versions),
    )
    return Certificate.issue(plan, sealed, claims)


def _state(sealed: Sealed, restore: records.Restore) -> Claim:
    same = restore.root_digest == sealed.root_digest and restore.step == sealed.step
    return Claim(
        "state",
        VERIFIED if same else CLAIM_FAILED,
        _started_from(restore)
        if same
        else f"started from step {restore.step}, root digest {restore.root_digest[:12]}; "
        f"the source's last step is {sealed.step}, root digest {sealed.root_digest[:12]}",
        {"sealed": sealed.root_digest, "restored": restore.root_digest, "divided": restore.divided_digests},
    )


def _started_from(restore: records.Restore) -> str:
    if not restore.divided_over:
        what = "the trainer was started from the bytes that were read on the source"
        return f"{what}, root digest {restore.root_digest[:12]}"
    before = count(restore.divided_from, "data-parallel process", "data-parallel processes")
    return (
        f"the bytes that were read on the source, root digest {restore.root_digest[:12]}, were divided over "
        f"{restore.divided_over} in place of {before}; the host reports each number unchanged, by SHA-256"
    )


def _step(step: int, evidence: Evidence, overlaps: Sequence[Overlap], *, complete: bool) -> Claim:
    """Check that the first logged step is the next one, within the logging interval.

    Everything that the trainer wrote since its start counts, also steps below the checkpoint's.
    """
    rows, since = evidence.target_rows, evidence.since_start
    if since is not None and since.contradiction:
        return Claim(
            "step",
            CLAIM_FAILED,
            f"{since.contradiction}: it did not continue from it (hint: resume: has to load {{checkpoint}}, and the "
            "metrics have to count the steps of the run)",
            since.to_json(),
        )
    if since is not None and since.counted:
        return Claim(
            "step",
            NOT_CHECKED,
            f"{since.counted} counts the rows of each process, so it does not show where the trainer began; "
            f"the checkpoint's step {step} was added to it (hint: log the run's step as global_step)",
            since.to_json(),
            needed=not since.opened,
        )
    if complete and not rows:
        return Claim("step", VERIFIED, f"the run was complete at step {step}: nothing was left to train")
    if not rows:
        return Claim("step", NOT_CHECKED, "the target has logged no step")
    begun = first_step(step, evidence.source_rows, rows, overlaps)
    measured = {"first": begun.first, "checkpoint": step, "interval": begun.interval}
    if not begun.may_follow_last_step:
        return Claim("step", VERIFIED if begun.continues else CLAIM_FAILED, begun.text, measured)
    why = "it may be the last one that was done, or a step is missing (hint: save the number of updates as step)"
    if begun.same:
        why = "it is the last one that was done, as the losses after it are equal bit by bit"
    return Claim(
        "step",
        VERIFIED if begun.same else NOT_CHECKED,
        f"{begun.text}: {why}",
        measured,
        needed=since is None or not since.opened,
    )


def _learning_rate(step: int, evidence: Evidence, overlaps: Sequence[Overlap]) -> Claim:
    """Compare the learning rates of the same steps.

    Where there are none, compare the first one of the target with the source's last ones.
    """
    pairs = [pair for overlap in overlaps for pair in overlap.learning_rates]
    if pairs:
        worst = max(records.relative_difference(before, after) for _, before, after in pairs)
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
        return Claim("learning rate", NOT_CHECKED, _why_no_rates(step, evidence), needed=False)
    return _continued_rate(before, after[0])


def _continued_rate(before: Sequence[tuple[int, float]], after: tuple[int, float]) -> Claim:
    """Compare the target's first rate with the line through the source's last ones.

    A schedule that bends at the seam, and one that begins a few steps too early or too late, look alike: neither is
    verified.
    """
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in pairwise(before[-9:]) if t > s]
    (last_step, last), (next_step, first) = before[-1], after
    steps, rounding = next_step - last_step, LEARNING_RATE_TOLERANCE * abs(last)
    bend = max((abs(after - before) for before, after in pairwise(slopes)), default=0.0)
    allowed = 2 * max(map(abs, slopes), default=0.0) * steps + rounding
    expected = last + (slopes[-1] if slopes else 0.0) * steps
    what = f"{last:.6g} at step {last_step}, then {first:.6g} at step {next_step}"
    evidence = {"before": last, "after": first, "allowed": allowed, "expected": expected}
    if abs(first - last) > allowed:
        return Claim("learning rate", CLAIM_FAILED, f"{what}: it has never changed so much", evidence)
    if len(slopes) > 1 and abs(first - expected) <= 2 * bend * steps + rounding:
        return Claim("learning rate", VERIFIED, what, evidence)
    why = f"the source's last rates lead to {expected:.6g}, so its schedule bends there or has moved"
    if len(slopes) < 2:
        why = "two rows before the checkpoint do not show the course of the schedule"
    return Claim("learning rate", NOT_CHECKED, f"{what}: {why}", evidence, needed=False)


def _why_no_rates(step: int, evidence: Evidence) -> str:
    """Return why the learning rates cannot be compared."""
    before = [row for row in evidence.source_rows if row["global_step"] < step]
    if not before:
        return "the source's rows before the checkpoint are not known"
    if not evidence.target_rows:
        return "the target has logged no step"
    if not _rates(evidence.source_rows) and not _rates(evidence.target_rows):
        return "it is not logged (log it with the loss)"
    if not _rates(evidence.target_rows):
        return "the source logged it, and the target has not yet"
    if not _rates(before):
        return "the target logged it, and the source has no row with it before the checkpoint"
    return f"the source has one row with it before the checkpoint, of step {_rates(before)[0][0]}: two show its change"


def _checkpoint_read(evidence: Evidence, *, complete: bool) -> Claim:
    """Check that the checkpoint was opened before the trainer's first row."""
    name, since = "checkpoint read", evidence.since_start
    if since is None or not since.files:
        return Claim(name, NOT_CHECKED, "the target has not recorded which files were opened", needed=False)
    if since.opened:
        what = f"{since.opened} of {count(since.files, 'file')} of the checkpoint"
        return Claim(
            name, VERIFIED, f"{what} {agree(since.opened, 'was', 'were')} opened after the trainer's start",
            since.to_json(), needed=False,
        )  # fmt: skip
    if since.unwatched:
        return Claim(name, NOT_CHECKED, f"openings are not known ({since.unwatched})", since.to_json(), needed=False)
    if not since.opened_until or complete:
        return Claim(name, NOT_CHECKED, "the trainer has logged no row yet", since.to_json(), needed=False)
    return Claim(
        name,
        CLAIM_FAILED,
        f"no file of the checkpoint was opened between the trainer's start and its {since.opened_until}",
        since.to_json(),
        needed=False,
    )


def _loss_level(step: int, evidence: Evidence) -> Claim:
    """Compare the target's first losses with the range of the source's last ones.

    Such a comparison finds only parameters that begin again.
    """
    name = "loss level"
    before = [row["train/loss"] for row in evidence.source_rows if row["global_step"] < step][-LEVEL_BEFORE:]
    after = [row["train/loss"] for row in evidence.target_rows][:LEVEL_AFTER]
    before, after = [loss for loss in before if math.isfinite(loss)], [loss for loss in after if math.isfinite(loss)]
    if len(before) < LEVEL_AFTER or not after:
        return Claim(name, NOT_CHECKED, "too few losses of both sides are known", needed=False)
    low, high, level = min(before), max(before), statistics.median(after)
    margin = max(LEVEL_MARGIN * (high - low), 0.5 * abs(statistics.median(before)))
    holds = low - margin <= level <= high + margin
    return Claim(
        name,
        VERIFIED if holds else CLAIM_FAILED,
        f"the target's first losses have the median {level:.6g}, the source's last {count(len(before), 'row')} had "
        f"{low:.6g} to {high:.6g}" + ("" if holds else ": the parameters are others"),
        {"level": level, "low": low, "high": high, "margin": margin},
        needed=False,
    )


def _curve(step: int, evidence: Evidence) -> Claim:
    """Name the steps before the checkpoint that the source has no rows of."""
    steps = [row["global_step"] for row in evidence.source_rows if row["global_step"] < step]
    if not steps:
        return Claim("curve", NOT_CHECKED, "the source's rows before the checkpoint are not known", needed=False)
    interval = min((after - before for before, after in pairwise(steps)), default=1)
    holes = [
        f"{before + 1} to {after - 1}"
        for before, after in pairwise([*steps, step])
        if after - before > max(1, interval)
    ]
    if holes:
        what = f"the source logged no row of steps {', '.join(holes[:8])}: the run's curve has a hole there"
        return Claim("curve", NOT_CHECKED, what, {"holes": holes[:64]}, needed=False)
    return Claim("curve", VERIFIED, f"no row is missing from step {steps[0]} to the checkpoint's", needed=False)


def _rates(rows: Rows) -> list[tuple[int, float]]:
    """Return (step, learning rate) of the rows where it is a number."""
    return [(row["global_step"], row[RATE]) for row in rows if RATE in row and not math.isnan(row[RATE])]


def _data(*overlaps: Overlap) -> Claim:
    pairs = [pair for overlap in overlaps for pair in overlap.batches]
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
