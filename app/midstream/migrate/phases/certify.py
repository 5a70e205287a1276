"""Prove that the run that goes on is the run that was sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midstream.errors import Exit, MidstreamError
from midstream.migrate.execution.migration import Migration, pinned_there, replayed
from midstream.migrate.failover.preemption import unless_preempted
from midstream.migrate.model import CERTIFY, Certificate
from midstream.migrate.phases.cutover import bring_state
from midstream.migrate.phases.streamed_copy import Streamed
from midstream.migrate.planning import estimate
from midstream.migrate.proof import certificate, curve_picture, downtime_report, live_certificate, restore_evidence
from midstream.watch.snapshot import RunView
from midstream_engine import records

EVIDENCE_TIMEOUT = 1800.0


def _rows_since(run: RunView, step: int, attempt: int) -> list[Mapping[str, Any]]:
    """The attempt's rows with a loss, from a step on; looked for from the curve's end, which may be long."""
    found = []
    for row in reversed(run.curve):
        if row["global_step"] < step:
            break
        if row["attempt"] == attempt and "train/loss" in row:
            found.append(row)
    return found[::-1]


class NotCertified(MidstreamError):
    """The certificate failed: the run on the target is not, or not provably, the run that was sealed."""

    code = Exit.NOT_CERTIFIED


class Certify:
    """Writes `certificate.json` and the page, and the ledger. Raises NotCertified where a claim is refuted."""

    name = CERTIFY

    def run(self, move: Migration) -> None:
        plan, target = move.plan, move.target
        sealed = move.journal.known("sealed")
        if replayed(move):
            return self._overtaken(move, sealed)
        attempt, restore = self._evidence(move, sealed)
        source_rows = self._source_rows(move, sealed)
        wanted = min(plan.certify_steps, len([row for row in source_rows if row["global_step"] >= sealed["step"]]))

        def enough(run: RunView) -> bool:
            rows = _rows_since(run, sealed["step"], attempt)
            ended = run.state in records.ENDED or run.state == "lost"
            return len(rows) >= max(1, wanted) or ended or run.attempt > attempt

        run = move.wait_for("the target's first losses", target.name, enough, EVIDENCE_TIMEOUT)
        rows = _rows_since(run, sealed["step"], attempt)
        complete = run.state == records.FINISHED and run.step == sealed["step"]
        proof = certificate.certify(plan, sealed, restore, rows, source_rows, complete=complete)
        self._ledger(move, rows, source_rows, restore)
        self._issue(move, proof, run)

    def _overtaken(self, move: Migration, sealed: Mapping[str, Any]) -> None:
        """The state was computed twice: bring the source's own along now, and compare."""
        plan, source, target = move.plan, move.source, move.target
        facts = {name: move.journal.known(name) for name in ("rehearsal", "standby_attempt", "crossing_step")}
        with pinned_there(move, sealed["checkpoint"]):
            bring_state(move, sealed["checkpoint"], Streamed())
            proof = live_certificate.gather(source, target, plan, sealed, facts)
        if proof is None:
            raise NotCertified(f"the target's attempt on {target.name} left no evidence of its start", "see its log")
        run = move.wait_for("the promoted run", target.name, lambda run: bool(run.curve), EVIDENCE_TIMEOUT)
        step = sealed["step"]
        theirs = restore_evidence.losses(source, plan.run_id, sealed["attempt"], step - 1, step - 1)
        ours = restore_evidence.losses(target, plan.run_id, int(facts["standby_attempt"]), step, step)
        ended, began = [row["time"] for row in theirs], [row["time"] for row in ours]
        if ended and began:
            last, next_one = ended[-1] - move.skew(plan.source), began[0] - move.skew(plan.target_host)
            entry = downtime_report.live(estimate.predicted(move), last, next_one)
            records.write_json(str(move.directory.ledger_file), entry.to_json())
        self._issue(move, proof, run)

    @staticmethod
    def _issue(move: Migration, proof: Certificate, run: RunView) -> None:
        """Write it down; NotCertified where it does not hold."""
        records.write_json(str(move.directory.certificate_file), proof.to_json())
        move.directory.picture_file.write_text(curve_picture.seam(proof, run.curve))
        page = certificate.page(proof, run.curve, move.directory.picture_file.name, move.directory.ledger())
        move.directory.page_file.write_text(page)
        for claim in proof.claims:
            move.note(f"{claim.name}: {claim.verdict}: {claim.statement}")
        if not proof.valid:
            refuted = next(claim for claim in proof.claims if claim.verdict != "verified")
            raise NotCertified(f"not certified: {refuted.name}: {refuted.statement}", "the run goes back to its source")

    def _evidence(self, move: Migration, sealed: Mapping[str, Any]) -> tuple[int, records.Restore]:
        """The attempt of this migration that restored the sealed checkpoint, and what it wrote of that."""
        target, newest = move.target, int(move.journal.known("target_attempt"))
        found = restore_evidence.restored(target, move.plan.run_id, sealed, newest)
        if found is None:
            raise NotCertified(f"attempt {newest} on {target.name} left no evidence of what it restored", "see its log")
        return found

    def _source_rows(self, move: Migration, sealed: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Rows that the source logged, from its last before the seal on; none where it is gone."""
        rows: list[dict[str, Any]] = []
        with unless_preempted(move, move.source_group, "its losses bear no witness"):
            rows = restore_evidence.losses(move.source, move.plan.run_id, sealed["attempt"], sealed["step"] - 1)
        return rows

    def _ledger(
        self,
        move: Migration,
        rows: Sequence[Mapping[str, Any]],
        source_rows: Sequence[Mapping[str, Any]],
        restore: records.Restore,
    ) -> None:
        """Write the ledger, where both sides left what it takes."""
        known, plan = move.journal.known, move.plan
        sealed = known("sealed")
        if not rows or not source_rows:
            return
        source = move.source
        found = source.call("runs.run_state.status", root=source.root, run_id=plan.run_id, attempt=sealed["attempt"])
        if not found["status"]:
            return
        spent = dict(restore.seconds)
        source_skew, target_skew = move.skew(plan.source), move.skew(plan.target_host)
        entry = downtime_report.measure(
            estimate.predicted(move),
            downtime_report.Marks(
                last_step_ended=source_rows[-1]["time"] - source_skew,
                source_stopped=found["status"]["heartbeat"] - source_skew,
                first_step_ended=rows[0]["time"] - target_skew,
                sealing=known("ordered", known("sealing", plan.created)),
                stop_seen=known("stop_seen"),
                relaunched=known("relaunched"),
                training_seen=known("training_seen"),
            ),
            copy_seconds=known("copy_seconds", 0.0),
            verify_seconds=known("verify_seconds", 0.0),
            compile_seconds=spent.pop("compile", 0.0),
            restore_seconds=sum(spent.values()),
            first_step_seconds=rows[0].get("throughput/duration", 0.0),
        )
        records.write_json(str(move.directory.ledger_file), entry.to_json())
