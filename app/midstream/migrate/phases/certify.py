"""Prove that the run that goes on is the run that was sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midstream.errors import Exit, MidstreamError
from midstream.migrate import certificate, ledger
from midstream.migrate.model import CERTIFY
from midstream.migrate.move import Move
from midstream.watch.model import RunView
from midstream_engine import records

EVIDENCE_TIMEOUT = 1800.0


class NotCertified(MidstreamError):
    """The certificate failed: the run on the target is not, or not provably, the run that was sealed."""

    code = Exit.NOT_CERTIFIED


class Certify:
    """Writes `certificate.json` and the page, and the ledger. Raises NotCertified where a claim is refuted."""

    name = CERTIFY

    def run(self, move: Move) -> None:
        plan, target = move.plan, move.target
        sealed, attempt = move.journal.known("sealed"), move.journal.known("target_attempt")
        source_rows = self._source_rows(move, sealed)
        wanted = min(plan.certify_steps, len([row for row in source_rows if row["global_step"] >= sealed["step"]]))

        def enough(run: RunView) -> bool:
            rows = [row for row in run.curve if row["attempt"] == attempt and "train/loss" in row]
            return len(rows) >= max(1, wanted) or run.state in records.ENDED or run.state == "lost"

        run = move.wait_for("the target's first losses", target.name, enough, EVIDENCE_TIMEOUT)
        rows = [row for row in run.curve if row["attempt"] == attempt and "train/loss" in row]
        evidence = target.call("runs.restore_evidence", root=target.root, run_id=plan.run_id, attempt=attempt)
        if evidence is None:
            raise NotCertified(
                f"attempt {attempt} on {target.name} left no evidence of what it restored", "see its log"
            )
        proof = certificate.certify(
            plan,
            sealed,
            records.Restore.from_json(evidence, "restore.json"),
            rows,
            source_rows,
        )
        records.write_json(str(move.directory.certificate_file), proof.to_json())
        move.directory.page_file.write_text(certificate.page(proof, run.curve))
        for claim in proof.claims:
            move.note(f"{claim.name}: {claim.verdict}: {claim.statement}")
        self._ledger(move, run, rows, records.Restore.from_json(evidence))
        if not proof.valid:
            refuted = next(claim for claim in proof.claims if claim.verdict != "proven")
            raise NotCertified(f"not certified: {refuted.name}: {refuted.statement}", "the run goes back to its source")

    def _source_rows(self, move: Move, sealed: dict) -> list[dict]:
        """Rows that the source logged, those past the seal too."""
        source, plan = move.source, move.plan
        text = source.call(
            "runs.metrics", root=source.root, run_id=plan.run_id, attempt=sealed["attempt"], offset=0, timeout=300.0
        )["text"]
        return [row for row in records.parse_metrics(text.splitlines()) if "train/loss" in row]

    def _ledger(self, move: Move, run: RunView, rows: Sequence[Mapping[str, Any]], restore: records.Restore) -> None:
        known = move.journal.known
        if not rows or (known("source_last_row_time") is None and not self._note_source_times(move)):
            return
        spent = dict(restore.seconds)
        compiling = spent.pop("compile", 0.0)
        target_skew = self._skew(move, move.plan.target_host)
        entry = ledger.measure(
            move.plan.predicted_seconds,
            last_step_ended=known("source_last_row_time"),
            source_stopped=known("source_stopped"),
            stop_seen=known("stop_seen", known("source_stopped")),
            copy_seconds=known("copy_seconds", 0.0),
            verify_seconds=known("verify_seconds", 0.0),
            restore_seconds=sum(spent.values()),
            first_step_seconds=rows[0].get("throughput/duration", 0.0),
            compile_seconds=compiling,
            first_step_ended=rows[0]["time"] - target_skew,
        )
        records.write_json(str(move.directory.ledger_file), entry.to_json())

    def _note_source_times(self, move: Move) -> bool:
        """When the source's last step ended and when it had stopped, on the operator's clock."""
        source, plan, sealed = move.source, move.plan, move.journal.known("sealed")
        found = source.call("runs.status", root=source.root, run_id=plan.run_id, attempt=sealed["attempt"])
        rows = self._source_rows(move, sealed)
        if not rows or not found["status"]:
            return False
        skew = self._skew(move, plan.source)
        move.journal.fact(
            source_last_row_time=rows[-1]["time"] - skew, source_stopped=found["status"]["heartbeat"] - skew
        )
        return True

    def _skew(self, move: Move, host: str) -> float:
        view = move.watch.snapshot().host(host)
        return view.machine.clock_skew if view and view.machine else 0.0
