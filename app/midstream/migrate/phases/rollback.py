"""The way back: close the target under one more epoch, and let the source go on from where it was sealed."""

from __future__ import annotations

import time
from typing import Any

from midstream.errors import MidstreamError
from midstream.launch.errors import LaunchError
from midstream.launch.start import kill_attempt, start_attempt, stop_attempt, wait_gone
from midstream.migrate.model import ROLLBACK
from midstream.migrate.move import Move
from midstream.migrate.phases.relaunch import wait_training
from midstream.watch.model import RunView
from midstream_engine import records

STOP_TIMEOUT = 300.0
WITHDRAW_TIMEOUT = 900.0


class Rollback:
    """Idempotent, like every phase. The source starts only after the target is positively closed: its process is gone
    and its fence names the source, or it was never started."""

    name = ROLLBACK

    def run(self, move: Move) -> None:
        self._withdraw_order(move)
        fence = self._source_fence(move)
        if fence.epoch < move.plan.epoch:
            move.note(f"{move.plan.source} was never sealed: nothing to undo there")
            return
        back = self._fence_back(move, fence)
        self._close_target(move, back)
        self._reopen_source(move, back)

    # ------------------------------------------------------------------------------------------ the source's order

    def _withdraw_order(self, move: Move) -> None:
        """A seal that was ordered and not yet carried out is replaced by a save; the engine says which one it did."""
        attempt, ordered = move.journal.known("sealing_attempt"), move.journal.known("ordered")
        if attempt is None or ordered is None or move.journal.known("sealed"):
            return
        source, run_id = move.source, move.plan.run_id
        found = source.call("runs.status", root=source.root, run_id=run_id, attempt=attempt)
        if not found["alive"]:
            return
        order = records.Order(records.SAVE, epoch=move.plan.source_epoch, migration=move.plan.migration)
        serial = source.call("runs.give_order", root=source.root, run_id=run_id, attempt=attempt, order=order.to_json())
        move.command(source, f"order: withdraw the seal (attempt {attempt} goes on)")

        def answered(run: RunView) -> bool:
            if run.state in records.ENDED or run.state == "lost":
                return True
            return run.status is not None and run.status.order >= serial

        move.wait_for("the source's answer to the withdrawn seal", source.name, answered, WITHDRAW_TIMEOUT)

    # ------------------------------------------------------------------------------------------ the fence

    def _source_fence(self, move: Move) -> records.Fence:
        described = move.source.call("runs.describe", root=move.source.root, run_id=move.plan.run_id)
        return records.Fence.from_json(described["fence"])

    def _fence_back(self, move: Move, fence: records.Fence) -> records.Fence:
        """One more epoch, held by the source, which goes on from its own newest checkpoint."""
        if fence.epoch == move.plan.epoch + 1 and fence.holder == move.plan.source:
            return fence  # an earlier try got so far
        if fence.epoch == move.plan.epoch and fence.sealed_step is not None:
            described = move.source.call("runs.describe", root=move.source.root, run_id=move.plan.run_id)
            own = [point["step"] for point in described["checkpoints"] if point["complete"] and self._own(move, point)]
            return fence.rolled_back(move.plan.source, max([fence.sealed_step, *own]))
        raise MidstreamError(
            f"run {move.plan.run_id} is at epoch {fence.epoch} (holder {fence.holder}) already",
            "it was moved on since; midstream --status shows where it is",
        )

    @staticmethod
    def _own(move: Move, point: dict[str, Any]) -> bool:
        """Whether the source wrote it under the epoch that the migration closed, or it was accepted anyway."""
        return point["accepted"] or point["epoch"] == move.plan.source_epoch

    def _close_target(self, move: Move, back: records.Fence) -> None:
        """Afterwards no process of this migration runs on the target, and its fence accepts none."""
        plan = move.plan
        if move.journal.known("target_attempt") is None and not move.journal.known("relaunching"):
            return  # never started: the target holds no fence of this epoch that an engine could run under
        target = move.target
        found: dict[str, Any] | None = target.call(
            "runs.attempt_of_migration", root=target.root, run_id=plan.run_id, migration=plan.migration
        )
        if found and found["alive"]:
            number = found["attempt"]
            move.command(target, f"stop attempt {number} on {target.name}")
            try:
                stop_attempt(target, plan.run_id, number, timeout=STOP_TIMEOUT)
                wait_gone(target, plan.run_id, number)
            except LaunchError as error:
                move.note(f"{error}; killing it")
                kill_attempt(target, plan.run_id, number)
        target.call("runs.put_fence", root=target.root, run_id=plan.run_id, fence=back.to_json())
        move.command(target, f"fence: epoch {back.epoch}, holder {back.holder}, sealed at step {back.sealed_step}")

    def _reopen_source(self, move: Move, back: records.Fence) -> None:
        plan, source = move.plan, move.source
        source.call("runs.put_fence", root=source.root, run_id=plan.run_id, fence=back.to_json())
        move.command(source, f"fence: epoch {back.epoch}, holder {back.holder}, sealed at step {back.sealed_step}")
        if not move.journal.known("source_was_alive"):
            move.note(f"the source did not run before the migration; it is as it was, at step {back.sealed_step}")
            return
        described = source.call("runs.describe", root=source.root, run_id=plan.run_id)
        if described["alive"] and described["status"] and described["status"]["state"] in records.ENDED:
            wait_gone(source, plan.run_id, described["attempt"])
            described["alive"] = False
        if described["alive"]:
            number = described["attempt"]
        else:
            points = [
                point
                for point in described["checkpoints"]
                if point["complete"] and point["accepted"] and point["step"] == back.sealed_step
            ]
            if not points:
                raise MidstreamError(
                    f"{source.name} has lost checkpoint step {back.sealed_step}", "midstream --checkpoints RUN"
                )
            point = max(points, key=lambda point: point["attempt"])
            attempt = start_attempt(
                source,
                move.fleet.hosts[plan.source],
                target=back.holder,
                run_id=plan.run_id,
                epoch=back.epoch,
                order=records.Order(
                    records.RESTORE,
                    epoch=back.epoch,
                    checkpoint=point["name"],
                    root_digest=point["root_digest"],
                    step=point["step"],
                    migration=plan.migration,
                ),
                overrides=(),
                at_least=max(described["attempt"], move.journal.known("target_attempt", 0)) + 1,
            )
            number = attempt.number
            move.command(source, f"start attempt {number} of {plan.run_id} from {point['name']}")
        wait_training(move, source.name, number)
        source.call("runs.unpin", root=source.root, run_id=plan.run_id, migration=plan.migration)
        move.journal.fact(rolled_back=time.time())
        move.note(f"{plan.run_id} runs on {source.name} again, from step {back.sealed_step}")
