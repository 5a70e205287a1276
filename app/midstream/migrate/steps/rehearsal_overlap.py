"""Compare a rehearsal's losses and batches before anything is stopped."""

from __future__ import annotations

import dataclasses

from midstream.errors import MidstreamError
from midstream.migrate.journal.certificate import CLAIM_FAILED
from midstream.migrate.journal.facts import Facts, required
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.first_step import first_step
from midstream.migrate.proof.global_batch_claim import global_batch_claim
from midstream.migrate.proof.overlap_claim import overlap_claim
from midstream.migrate.proof.replay_overlap import Overlap, overlap_of
from midstream.migrate.proof.trainer_certificate import ROWS_BEFORE, rehearsal_rows
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.observation import wait_for
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_host.trainers import recorded_epoch

ROWS_TIMEOUT = 900.0  # seconds for the source to log the steps that the rehearsal did
BATCH_HINT = (
    "{accumulation} or {per_device} in the command with batch: {sequences: N} keep the global batch on other devices"
)

STEP_HINT = (
    "checkpoints and rows have to count the same: metrics: {first_step: N} has the number of the first update in the "
    "rows, metrics: {names: {step: NAME}} another field"
)


def check(migration: Migration) -> None:
    """Compare losses of the same steps, and batches; journal the result.

    Raises:
        MidstreamError: They do not agree, or a step has another amount of data, and the user has not agreed to that.
    """
    facts, plan = migration.journal.facts, migration.plan
    if facts.agreement is not None:
        return
    rehearsal = required(facts.rehearsal, "rehearsal")
    rows = rehearsal_rows(
        migration.target, plan.run_id, required(facts.standby_attempt, "standby_attempt"), rehearsal.step
    )
    if not rows:
        return
    last = rows[-1]["global_step"]

    def passed(run: RunView) -> bool:
        ended = not run.running or run.state in records.ENDED
        return ended or any(row["global_step"] >= last and "train/loss" in row for row in run.curve[-ROWS_BEFORE:])

    run = wait_for(migration, f"step {last} on the source", migration.source.name, passed, ROWS_TIMEOUT)
    source = restore_evidence.losses(
        migration.source, plan.run_id, run.attempt, max(0, rehearsal.step - ROWS_BEFORE), last
    )
    overlap = overlap_of(source, rows, rehearsal.step)
    epoch = migration.target.call(recorded_epoch.recorded_epoch)(
        root=migration.target.root, run_id=plan.run_id, checkpoint=rehearsal.name
    )
    batch = global_batch_claim(plan.trainer, source, (), rows, (overlap,), epoch)
    losses = overlap_claim(plan, overlap)
    for claim in (batch, losses):
        migration.note(f"rehearsal: {claim.name}: {claim.verdict}: {claim.statement}")
    begun = first_step(rehearsal.step, source, rows, (overlap,))
    if begun.follows_last_step:
        migration.note(
            f"rehearsal: step: {rehearsal.name} continues with step {begun.first}: checkpoints of {plan.run_id} have "
            "the number of their last step, and one is added to it from here on"
        )
    elif not (begun.continues or begun.may_follow_last_step):
        raise MidstreamError(f"the rehearsal on {plan.target}: step: {begun.text}", f"nothing was stopped; {STEP_HINT}")
    agreement = dataclasses.replace(overlap.facts(), last_step_numbers=begun.follows_last_step)
    migration.journal.record(Facts(agreement=agreement))
    for claim, hint in ((batch, BATCH_HINT), (losses, agreement_hint(overlap))):  # another batch has other losses
        if claim.verdict == CLAIM_FAILED and not claim.agreed:
            raise MidstreamError(f"the rehearsal on {plan.target}: {claim.statement}", f"nothing was stopped; {hint}")


def agreement_hint(overlap: Overlap) -> str:
    """Return which missing state explains the difference, and how to agree to it.

    Digests of the batches, where both sides have them, say which.
    """
    order = "stored: {data_position: 'no'} in the run file agrees to data that begin again"
    draws = "stored: {random_state: 'no'} in the run file agrees to other draws of dropout and augmentation"
    if not overlap.batches:
        return f"{order}, {draws}"
    return draws if all(before == after for _, before, after in overlap.batches) else order
