"""Prove that the run on the target is the run that was sealed."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.errors import Exit, MidstreamError
from midstream.migrate.journal import downtime_report
from midstream.migrate.journal.certificate import Certificate
from midstream.migrate.journal.facts import Sealed, required
from midstream.migrate.journal.phase_names import CERTIFY
from midstream.migrate.phases.cutover import copy_state
from midstream.migrate.proof import (
    certificate_page,
    copy_certificate,
    curve_picture,
    live_certificate,
    restore_evidence,
    trainer_certificate,
)
from midstream.migrate.steps import estimate_update
from midstream.migrate.steps.migration import Migration, replayed
from midstream.migrate.steps.observation import clock_skew, wait_for
from midstream.migrate.steps.pins import pinned_on_target
from midstream.migrate.steps.preemption import unless_preempted
from midstream.migrate.steps.streamed_copy import StreamedCopy
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import JsonObject, LoggedRow
from midstream_host.runs import run_state
from midstream_host.runs.losses import MetricsRow

EVIDENCE_TIMEOUT = 1800.0


def _rows_since(run: RunView, step: int, attempt: int) -> list[JsonObject]:
    """Return the attempt's rows with a loss from ``step`` on, in order."""
    rows: list[JsonObject] = []
    for row in reversed(run.curve):
        if row["global_step"] < step:
            break
        if row["attempt"] == attempt and "train/loss" in row:
            rows.append(row)
    return rows[::-1]


def restored_seal(migration: Migration, sealed: Sealed, evidence: tuple[int, records.Restore] | None) -> bool:
    """Return whether the target trains on from the sealed checkpoint.

    It does so instead of from what its replica had computed: a requeued job does, and an attempt after a replica that
    has failed. A source that ended by itself is sealed at the checkpoint that the replay began with: the replica has
    restored that one, too.
    """
    if evidence is None or evidence[1].checkpoint != sealed.checkpoint:
        return False
    facts = migration.journal.facts
    began = facts.rehearsal.name if facts.rehearsal is not None else ""
    return evidence[0] != facts.standby_attempt or began != sealed.checkpoint


class NotCertifiedError(MidstreamError):
    """The certificate failed: a claim about the run on the target does not hold."""

    code = Exit.NOT_CERTIFIED


class NotProvenError(NotCertifiedError):
    """Evidence for a claim is missing, and nothing contradicts it."""


class Certify:
    """Write the certificate with its page and picture, and the downtime report.

    Raises NotCertifiedError if a claim is not verified.
    """

    name = CERTIFY

    def run(self, migration: Migration) -> None:
        plan, target = migration.plan, migration.target
        sealed = required(migration.journal.facts.sealed, "sealed")
        newest = required(migration.journal.facts.target_attempt, "target_attempt")
        evidence = restore_evidence.restored(target, plan.run_id, sealed, newest)
        if replayed(migration) and not restored_seal(migration, sealed, evidence):
            computed = self._live_proof(migration, sealed)
            evidence = restore_evidence.restored(target, plan.run_id, sealed, newest)
            if not restored_seal(migration, sealed, evidence):  # it may have begun again in between
                return self._certify_live(migration, sealed, computed)
        if evidence is None:
            why = f"attempt {newest} on {target.name} left no evidence of what it restored"
            return self._issue(migration, Certificate.without_evidence(plan, sealed, why))
        attempt, restore = evidence
        source_rows = self._source_rows(migration, sealed)
        needed = min(plan.policy.certify_steps, len([row for row in source_rows if row["global_step"] >= sealed.step]))

        def enough(run: RunView) -> bool:
            rows = _rows_since(run, sealed.step, attempt)
            ended = run.state in records.ENDED or run.state == "lost"
            contradicted = run.status is not None and bool(run.status.contradiction)
            return len(rows) >= max(1, needed) or ended or contradicted or run.attempt > attempt

        run = wait_for(migration, "the target's first losses", target.name, enough, EVIDENCE_TIMEOUT)
        rows = _rows_since(run, sealed.step, attempt)
        complete = run.state == records.FINISHED and run.step == sealed.step
        if plan.trainer is None:
            lost = not source_rows  # a preempted source is not reached
            versions = (
                restore_evidence.versions(None if lost else migration.source, plan.run_id, sealed.attempt),
                restore_evidence.versions(target, plan.run_id, attempt),
            )
            proof = copy_certificate.certify(
                plan, sealed, restore, rows, source_rows, complete=complete, versions=versions
            )
        else:
            read = trainer_certificate.read_evidence(
                migration.source, target, plan, sealed, attempt, migration.journal.facts
            )
            proof = trainer_certificate.certify(plan, sealed, restore, read, complete=complete)
        self._write_downtime(migration, rows, source_rows, restore)
        self._issue(migration, proof, run.curve)

    def undo(self, migration: Migration) -> None:
        """Mark the certificate's page as void; the page stays as a record."""
        page = migration.directory.page_file
        if not page.is_file():
            return
        text = page.read_text(encoding="utf-8", errors="replace")  # a damaged page is no reason not to roll back
        if certificate_page.VOID not in text:
            heading, _, rest = text.partition("\n")
            records.write_bytes(str(page), f"{heading}\n\n{certificate_page.VOID}\n{rest}".encode())

    @staticmethod
    def _live_proof(migration: Migration, sealed: Sealed) -> Certificate | None:
        """Copy the source's state, and compare a replica's. None without evidence."""
        if migration.journal.facts.rehearsal is None:
            return None
        with pinned_on_target(migration, sealed.checkpoint):
            copy_state(migration, sealed.checkpoint, StreamedCopy())
            return live_certificate.gather(
                migration.source, migration.target, migration.plan, sealed, migration.journal.facts
            )

    def _certify_live(self, migration: Migration, sealed: Sealed, proof: Certificate | None) -> None:
        """Certify a live migration."""
        plan, source, target = migration.plan, migration.source, migration.target
        facts = migration.journal.facts
        if proof is None:
            why = f"the target's attempt on {target.name} left no evidence of its start"
            if facts.rehearsal is None:
                why = f"the journal has lost which checkpoint the replay on {target.name} began with"
            return self._issue(migration, Certificate.without_evidence(plan, sealed, why))
        run = wait_for(migration, "the promoted run", target.name, lambda run: bool(run.curve), EVIDENCE_TIMEOUT)
        # A source that ended by itself has done more steps than it has saved, and so has the replica.
        source_rows = restore_evidence.losses(source, plan.run_id, sealed.attempt, sealed.step - 1)
        after = source_rows[-1]["global_step"] + 1 if source_rows else sealed.step
        target_rows = restore_evidence.losses(
            target, plan.run_id, required(facts.standby_attempt, "standby_attempt"), after, after
        )
        ended, began = _times(source_rows), _times(target_rows)
        if ended and began:
            last, next_one = (
                ended[-1] - clock_skew(migration, plan.source),
                began[0] - clock_skew(migration, plan.target_host),
            )
            entry = downtime_report.live(estimate_update.predicted_seconds(migration), last, next_one)
            records.write_json(str(migration.directory.downtime_file), entry.to_json())
        self._issue(migration, proof, run.curve)

    @staticmethod
    def _issue(migration: Migration, proof: Certificate, curve: Sequence[LoggedRow] = ()) -> None:
        """Write the certificate. NotCertifiedError if a claim is not verified."""
        shown = migration.directory.certificate()
        if migration.agreed and shown is not None:
            proof = proof.accepting(shown.unproven)
        records.write_json(str(migration.directory.certificate_file), proof.to_json())
        records.write_bytes(str(migration.directory.picture_file), curve_picture.seam(proof, curve).encode())
        page = certificate_page.page(
            proof, curve, migration.directory.picture_file.name, migration.directory.downtime()
        )
        records.write_bytes(str(migration.directory.page_file), page.encode())
        for claim in proof.claims:
            migration.note(f"{claim.name}: {claim.verdict}: {claim.statement}")
        plan = migration.plan
        migration.log_own_command("check the certificate again", plan.own_command("--verify", plan.migration))
        if not proof.valid:
            doubt = proof.doubt
            why = f"{doubt.name}: {doubt.statement}" if doubt is not None else "no claim is verified"
            if proof.unproven:
                hint = f"midstream --continue {plan.migration} --yes goes on without that evidence"
                raise NotProvenError(f"not certified: {why}", hint)
            raise NotCertifiedError(f"not certified: {why}", "the run goes back to its source")

    def _source_rows(self, migration: Migration, sealed: Sealed) -> list[MetricsRow]:
        """Return the source's rows from its last before the seal on; empty if preempted."""
        rows: list[MetricsRow] = []
        with unless_preempted(
            migration.fleet, migration.source_group.target, migration.note, "its losses are not compared"
        ):
            rows = restore_evidence.losses(migration.source, migration.plan.run_id, sealed.attempt, sealed.step - 1)
        return rows

    def _write_downtime(
        self,
        migration: Migration,
        rows: Sequence[LoggedRow],
        source_rows: Sequence[LoggedRow],
        restore: records.Restore,
    ) -> None:
        """Write the downtime report, if source and target logged rows for it."""
        facts, plan = migration.journal.facts, migration.plan
        sealed = required(facts.sealed, "sealed")
        if not rows or not source_rows:
            return
        source = migration.source
        answer = source.call(run_state.status)(root=source.root, run_id=plan.run_id, attempt=sealed.attempt)
        if not answer.status:
            return
        spent = dict(restore.seconds)
        source_skew, target_skew = clock_skew(migration, plan.source), clock_skew(migration, plan.target_host)
        entry = downtime_report.measure(
            estimate_update.predicted_seconds(migration),
            downtime_report.Marks(
                last_step_ended=source_rows[-1]["time"] - source_skew,
                source_stopped=answer.status.heartbeat - source_skew,
                first_step_ended=rows[0]["time"] - target_skew,
                sealing=facts.stop_commanded_at or facts.seal_started_at or plan.identity.created,
                stop_seen=facts.stop_confirmed_at,
                relaunched=facts.relaunch_started_at,
                training_seen=facts.training_confirmed_at,
            ),
            copy_seconds=facts.state_copy.seconds if facts.state_copy else 0.0,
            verify_seconds=facts.verify_seconds or 0.0,
            compile_seconds=spent.pop("compile", 0.0),
            restore_seconds=sum(spent.values()),
            first_step_seconds=rows[0].get("throughput/duration", 0.0),
        )
        records.write_json(str(migration.directory.downtime_file), entry.to_json())


def _times(rows: Sequence[MetricsRow]) -> list[float]:
    """Return the times of the rows that have one."""
    return [row["time"] for row in rows if "time" in row]
