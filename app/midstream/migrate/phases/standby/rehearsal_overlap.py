"""Compare the losses of a rehearsal with the source's, before anything is stopped."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.phases.context.migration import Migration
from midstream.migrate.phases.context.observation import wait_for
from midstream.migrate.proof import restore_evidence
from midstream.migrate.proof.replay_overlap import overlap_of
from midstream.migrate.proof.trainer_certificate import ROWS_BEFORE, overlap_claim, rehearsal_rows
from midstream.migrate.records.certificate import CLAIM_FAILED
from midstream.migrate.records.facts import Facts, required
from midstream.watch.snapshot import RunView
from midstream_engine import records

ROWS_TIMEOUT = 900.0  # seconds for the source to log the steps that the rehearsal did


def check(migration: Migration) -> None:
    """Compare rehearsal and source losses of the same steps; journal the result.

    Raises:
        MidstreamError: They do not agree, and the user has not agreed to that.
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
    overlap = overlap_of(source, rows)
    claim = overlap_claim(plan, overlap)
    migration.note(f"rehearsal: {claim.name}: {claim.verdict}: {claim.statement}")
    migration.journal.record(Facts(agreement=overlap.facts()))
    if claim.verdict == CLAIM_FAILED and not claim.agreed:
        raise MidstreamError(
            f"the rehearsal on {plan.target}: {claim.statement}",
            "nothing was stopped; stored: {data_position: 'no'} in the run file agrees to it",
        )
