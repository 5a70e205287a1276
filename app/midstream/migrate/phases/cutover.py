"""Mode `stop`: seal the source, copy the sealed state, verify it where it arrived."""

from __future__ import annotations

import time
from typing import Any

from midstream.errors import MidstreamError
from midstream.launch.start import wait_gone
from midstream.migrate import plan as planning
from midstream.migrate.model import CUTOVER
from midstream.migrate.move import Move, pin
from midstream.migrate.phases.prepare import copy_data
from midstream.transfer import copy_history, copy_objects, verify_objects
from midstream.watch.model import RunView
from midstream_engine import records

SEAL_TIMEOUT = 900.0  # seconds: a step and a save of a large run
IN_HAND = 2 * SEAL_TIMEOUT  # seconds after which another migration may take the run, if this one has not sealed it


class Cutover:
    """After this phase the target holds the sealed checkpoint and the run's history, and no fence accepts another
    step of the source."""

    name = CUTOVER

    def run(self, move: Move) -> None:
        if not move.journal.known("sealed"):
            sealed = self._seal(move)
            move.journal.fact(sealed=sealed)
            move.note(f"the source is sealed at step {sealed['step']}", step=sealed["step"])
        sealed = move.journal.known("sealed")
        name = sealed["checkpoint"]
        pin(move, name)
        self._copy(move, name)
        self._verify(move, name, sealed["root_digest"])
        digest = planning.data_digest(move.source, move.plan.run_id, name)
        if digest != move.plan.data_digest:  # the plan did not know it: the run had not saved yet
            copy_data(move, digest)

    # ------------------------------------------------------------------------------------------ the seal

    def _seal(self, move: Move) -> dict[str, Any]:
        """Positive evidence that the source is closed under the new epoch, and what it was closed with."""
        fence = self._take(move)
        described = self._described(move)
        if fence.epoch < move.plan.epoch:
            if move.journal.known("holder_before") is None:
                move.journal.fact(holder_before=fence.holder, sealing=time.time())
            if described["alive"]:
                described = self._stop(move, described)
            if records.Fence.from_json(described["fence"]).epoch < move.plan.epoch:
                self._seal_closed(move, described)
        self._take(move)  # what was sealed meanwhile may have been another migration's
        return self._sealed_facts(move)

    def _take(self, move: Move) -> records.Fence:
        """Have the run to ourselves, or end here: RemoteError says who has it."""
        plan, source = move.plan, move.source
        fence = source.call(
            "runs.take",
            root=source.root,
            run_id=plan.run_id,
            migration=plan.migration,
            epoch=plan.epoch,
            holder=plan.target,
            seconds=IN_HAND,
        )
        return records.Fence.from_json(fence)

    @staticmethod
    def _described(move: Move) -> dict[str, Any]:
        return move.source.call("runs.describe", root=move.source.root, run_id=move.plan.run_id)

    def _stop(self, move: Move, described: dict[str, Any]) -> dict[str, Any]:
        """Order the running engine to save and to stop; the run as it is then. Where the move starts from this very
        save, the engine writes the fence itself, and its status is the acknowledgement."""
        plan, source, attempt = move.plan, move.source, described["attempt"]
        sealing = plan.checkpoint == "now"
        order = records.Order(
            records.STOP,
            epoch=plan.epoch if sealing else plan.source_epoch,
            holder=plan.target if sealing else "",
            migration=plan.migration,
        )
        move.journal.fact(source_was_alive=True, sealing_attempt=attempt, ordered=time.time())
        serial = source.call(
            "runs.give_order", root=source.root, run_id=plan.run_id, attempt=attempt, order=order.to_json()
        )
        move.journal.fact(seal_serial=serial)
        what = f"save, seal epoch {plan.epoch} for {plan.target}, stop" if sealing else "save, stop"
        move.command(source, f"order: {what} (attempt {attempt})")

        def answered(run: RunView) -> bool:
            if run.attempt != attempt:
                return run.attempt > attempt
            return run.status is not None and (
                run.state in records.ENDED or run.state == "lost" or run.status.refused >= serial
            )

        run = move.wait_for("the source's acknowledgement of the seal", source.name, answered, SEAL_TIMEOUT)
        move.journal.fact(stop_seen=time.time())
        message = run.status.message if run.status else ""
        if run.status is not None and run.status.refused >= serial:
            raise MidstreamError(
                f"{source.name} cannot save what is to be moved: {message}",
                f"mend that on {source.name} and move again; the run trains on",
            )
        wait_gone(source, plan.run_id, attempt)
        described = self._described(move)
        stopped_itself = run.status is None or run.status.order < serial
        if stopped_itself and records.Fence.from_json(described["fence"]).epoch < plan.epoch:
            # It died or finished before it read the order. Its process is gone, so we may seal.
            move.note(
                f"the source ended by itself ({run.state}{': ' + message if message else ''}); sealing what it left"
            )
        return described

    def _seal_closed(self, move: Move, described: dict[str, Any]) -> None:
        """Seal a source that does not run at a checkpoint that exists."""
        plan, source = move.plan, move.source
        usable = [point for point in described["checkpoints"] if point["complete"] and point["accepted"]]
        if plan.checkpoint != "now":
            usable = [point for point in usable if point["name"] == plan.checkpoint]
        if not usable:
            raise MidstreamError(
                f"{source.name} has no complete checkpoint to move", "midstream --checkpoints RUN shows what is there"
            )
        step = max(point["step"] for point in usable)
        source.call(
            "runs.seal",
            root=source.root,
            run_id=plan.run_id,
            epoch=plan.epoch,
            holder=plan.target,
            sealed_step=step,
            migration=plan.migration,
        )
        move.command(source, f"fence: epoch {plan.epoch}, holder {plan.target}, sealed at step {step}")

    def _sealed_facts(self, move: Move) -> dict[str, Any]:
        """Read back from the source's disk what was sealed: the fence and the newest checkpoint that it accepts."""
        plan, source = move.plan, move.source
        described = self._described(move)
        fence = records.Fence.from_json(described["fence"])
        if fence.epoch != plan.epoch or fence.holder != plan.target or fence.sealed_step is None:
            raise MidstreamError(f"{source.name} stopped without sealing epoch {plan.epoch}", "plan again")
        points = [p for p in described["checkpoints"] if p["complete"] and p["step"] == fence.sealed_step]
        if plan.checkpoint != "now":
            points = [point for point in points if point["name"] == plan.checkpoint]
        if not points:
            raise MidstreamError(
                f"the fence on {source.name} seals step {fence.sealed_step}, of which no complete checkpoint is there",
                "midstream --checkpoints RUN shows what is there",
            )
        point = max(points, key=lambda point: point["attempt"])
        return {
            "checkpoint": point["name"],
            "step": point["step"],
            "root_digest": point["root_digest"],
            "bytes": point["size"],
            "fence": fence.to_json(),
            "attempt": described["attempt"],
        }

    # ------------------------------------------------------------------------------------------ the copy

    def _copy(self, move: Move, name: str) -> None:
        source, target = move.source, move.target
        began = time.monotonic()
        move.command(source, f"copy {move.source_paths.dir} (config, lineage, metrics) to {target.name}")
        copy_history(source, target, move.plan.run_id, source_root=source.root, target_root=target.root)
        here, there = move.source_paths.checkpoint(name), move.target_paths.checkpoint(name)
        move.command(source, f"copy {here} to {target.name}:{there}")
        report = copy_objects(source, here, target, there, progress=move.progress("checkpoint"))
        move.journal.fact(copy_seconds=time.monotonic() - began, copied_bytes=report.bytes_sent)

    def _verify(self, move: Move, name: str, expected: str) -> None:
        """Read every object back from the target's disk. The root digest is computed there, from those bytes."""
        began = time.monotonic()
        directory = move.target_paths.checkpoint(name)
        move.command(move.target, f"sha256 of every object in {directory}")
        report = verify_objects(move.target, directory)
        if not report.ok:
            path, what = report.problems[0]
            raise MidstreamError(
                f"{move.target.name}:{directory}/{path}: {what} after the copy", "the copy is not used; try again"
            )
        if report.root_digest != expected:
            raise MidstreamError(
                f"{move.target.name}:{directory} has another root digest ({report.root_digest}) than was sealed",
                "the copy is not used; midstream --verify shows which objects differ",
            )
        move.journal.fact(verify_seconds=time.monotonic() - began)
        move.note(f"{report.objects} objects verified on {move.target.name}, root digest {expected[:12]}")
