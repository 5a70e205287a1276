"""The way back: close the target under one more epoch, and let the source go on from where it was sealed."""

from __future__ import annotations

import time
from typing import Any

from midstream.errors import HostError, MidstreamError
from midstream.launch.errors import LaunchError
from midstream.migrate.execution.migration import Migration, MovedOn
from midstream.migrate.failover.preemption import Preempted, preempted
from midstream.migrate.host_group import HostGroup
from midstream.migrate.model import ROLLBACK
from midstream.migrate.phases import prepare_standby
from midstream.migrate.phases.relaunch import wait_training
from midstream.migrate.phases.rollback_outcome import not_running
from midstream.watch.snapshot import RunView
from midstream_engine import records

STOP_TIMEOUT = 300.0
WITHDRAW_TIMEOUT = 900.0
SILENCE = 60.0  # seconds in which a host that fell silent may come back, so that what stands by there is ended
NOTHING_TO_SAVE = frozenset({records.STARTING, records.COMPILING, records.RESTORING})


class Rollback:
    """Idempotent, like every phase. The source starts only after the target is positively closed: its process is gone
    and its fence names the source, or it was never started. A migration that does not have the run in its hands (it
    never got so far, or another one took it) changes nothing."""

    name = ROLLBACK

    def run(self, move: Migration) -> None:
        try:
            self._take_back(move)
        except (HostError, Preempted) as error:
            gone = preempted(move.fleet, move.source_group.target)
            if not gone or move.journal.known("sealed") is not None:
                raise
            # Unsealed, no engine was started on the target; and on the source nothing runs any more.
            move.note(f"{error.message}; {gone}: there is nothing to go back to")
            move.journal.fact(rolled_back=time.time(), not_running="")

    def _take_back(self, move: Migration) -> None:
        dismissed = prepare_standby.dismiss_if_reachable(move)
        source, plan = move.source, move.plan
        mover = source.call("runs.ownership.migration_lock", root=source.root, run_id=plan.run_id)
        if mover is None or mover["migration"] != plan.migration:
            move.note(f"this migration has not touched {plan.run_id} on {source.name}: nothing to undo there")
        else:
            self._withdraw_order(move)
            fence = self._source_fence(move)
            if fence.epoch < plan.epoch:
                self._go_on_unsealed(move, fence)
            else:
                back = self._fence_back(move, fence)
                self._close_target(move, back)
                self._reopen_source(move, back)
        move.source_group.release(plan.migration)
        if not dismissed and not preempted(move.fleet, move.target_group.target):
            # The run is safe; what stands by costs accelerators.
            prepare_standby.dismiss_if_reachable(move, SILENCE)
        move.journal.fact(rolled_back=time.time(), not_running=not_running(move))

    # ------------------------------------------------------------------------------------------ the source's order

    def _withdraw_order(self, move: Migration) -> None:
        """An order to stop that is not yet carried out is replaced by a save; the engine says which one it did."""
        attempt, ordered = move.journal.known("sealing_attempt"), move.journal.known("seal_serial", 0)
        if attempt is None or move.journal.known("sealed"):
            return
        source, run_id = move.source, move.plan.run_id
        found = source.call("runs.run_state.status", root=source.root, run_id=run_id, attempt=attempt)
        if not found["running"]:
            return
        before = found["status"] or {}
        if ordered and before.get("rejected", 0) >= ordered:
            return  # it was refused already, and no later one was given
        order = records.Command(records.SAVE, epoch=move.plan.source_epoch, migration=move.plan.migration)
        serial = source.call(
            "runs.ownership.send_command", root=source.root, run_id=run_id, attempt=attempt, order=order.to_json()
        )
        move.command(source, f"order: save and go on, in place of the stop (attempt {attempt})")

        def answered(run: RunView) -> bool:
            if run.attempt != attempt or run.state in records.ENDED or run.state == "lost":
                return True
            status = run.status
            if status is None:
                return False
            if status.acknowledged >= serial or (ordered and status.rejected >= ordered):
                return True
            # It cannot save, and says so: then it has read the newer order, or refused the older one.
            complains = bool(status.message) and status.message != before.get("message")
            return complains and status.state == records.TRAINING

        move.wait_for("the source's answer to the withdrawn seal", source.name, answered, WITHDRAW_TIMEOUT)

    def _go_on_unsealed(self, move: Migration, fence: records.Fence) -> None:
        """The source was not sealed. It trains on, unless it stopped on our order, or died since."""
        attempt = move.journal.known("sealing_attempt")
        if attempt is None:
            move.note(f"{move.plan.source} was not ordered to stop: nothing to undo there")
            return
        found = move.source.call(
            "runs.run_state.status", root=move.source.root, run_id=move.plan.run_id, attempt=attempt
        )
        state = (found["status"] or {}).get("state", "")
        if state in records.ENDED and found["running"]:
            move.source_group.wait_exited(attempt)
        elif found["running"]:
            move.note(f"{move.plan.source} was not sealed: it trains on")
            return
        if state in (records.FINISHED, records.FAILED):
            move.note(f"{move.plan.source} was not sealed, and ended by itself ({state}): it is left as it is")
            return
        if not any(point["complete"] and point["accepted"] for point in move.source_group.describe()["checkpoints"]):
            move.note(f"{move.plan.source} was not sealed, and {move.plan.run_id} has no complete checkpoint there")
            return
        number = move.source_group.running_attempt() or self._start_source(move, fence, None)
        wait_training(move, move.source_group, number)
        move.note(f"{move.plan.run_id} runs on {move.plan.source} again")

    # ------------------------------------------------------------------------------------------ the fence

    def _source_fence(self, move: Migration) -> records.Fence:
        described = move.source_group.describe()
        return records.Fence.from_json(described["fence"], f"{move.source.name}: fence.json of {move.plan.run_id}")

    def _fence_back(self, move: Migration, fence: records.Fence) -> records.Fence:
        """One more epoch, held by whoever held the run before, which goes on from its own newest checkpoint."""
        plan = move.plan
        holder = move.journal.known("holder_before") or plan.source
        if fence.epoch == plan.epoch + 1 and fence.owner == holder:
            return fence  # an earlier try got so far
        if fence.epoch == plan.epoch and fence.owner == plan.target and fence.sealed_step is not None:
            described = move.source_group.describe()
            own = [point["step"] for point in described["checkpoints"] if point["complete"] and self._own(move, point)]
            return fence.rolled_back(holder, max([fence.sealed_step, *own]))
        raise MovedOn(
            f"run {plan.run_id} is at epoch {fence.epoch} (holder {fence.owner}) already: it was moved on since",
            "midstream --status shows where it is",
        )

    @staticmethod
    def _own(move: Migration, point: dict[str, Any]) -> bool:
        """Whether the source wrote it under the epoch that the migration closed, or it was accepted anyway."""
        return point["accepted"] or point["epoch"] == move.plan.source_epoch

    def _close_target(self, move: Migration, back: records.Fence) -> None:
        """Afterwards no process of this migration runs on the target, and its fence accepts none."""
        plan = move.plan
        started = move.journal.known("relaunching") or move.journal.known("target_attempt") is not None
        try:
            self._stop_target(move, back)
        except HostError as error:
            gone = preempted(move.fleet, move.target_group.target)
            if gone:
                move.note(f"{error.message}; {gone}: nothing runs there any more, so the source goes on without it")
                return
            if started:
                raise
            # No engine was ever started there, and without a fence of this epoch none will be.
            move.note(f"{error}; no engine was started on {plan.target_host}, so the source goes on without it")

    def _stop_target(self, move: Migration, back: records.Fence) -> None:
        plan, target = move.plan, move.target
        described = move.target_group.describe()
        if described["fence"] is None and not described["attempts"]:
            return  # nothing of the run has come there
        there = records.Fence.from_json(described["fence"]) if described["fence"] else records.first_fence("")
        if there.epoch > plan.epoch and there != back:
            raise MovedOn(
                f"run {plan.run_id} went on from {target.name} to {there.owner} (epoch {there.epoch}): "
                "taking this move back would make a second lineage",
                f"move it from there: midstream --migrate {plan.run_id} --to {plan.source}",
            )
        found = move.target_group.attempt_of_migration(plan.migration)
        if found:
            move.journal.fact(target_attempt=found["attempt"])  # the source's next one takes a higher number
        if found and found["running"]:
            number, state = found["attempt"], (found["status"] or {}).get("state", records.STARTING)
            try:
                if state in NOTHING_TO_SAVE:
                    move.command(target, f"kill attempt {number} on {plan.target} ({state})")
                    move.target_group.kill(number)
                else:
                    move.command(target, f"stop attempt {number} on {plan.target}")
                    move.target_group.stop(number, STOP_TIMEOUT)
            except LaunchError as error:
                move.note(f"{error}; killing it")
                move.target_group.kill(number)
        self._put_fence(move, move.target_group, back)

    @staticmethod
    def _put_fence(move: Migration, side: HostGroup, back: records.Fence) -> None:
        side.put_fence(back.to_json(), move.plan.migration)
        move.command(side.first, f"fence: epoch {back.epoch}, holder {back.owner}, sealed at step {back.sealed_step}")

    # ------------------------------------------------------------------------------------------ the source

    def _reopen_source(self, move: Migration, back: records.Fence) -> None:
        plan, source = move.plan, move.source
        self._put_fence(move, move.source_group, back)
        if not move.journal.known("source_was_alive"):
            move.note(f"the source did not run before the migration; it is as it was, at step {back.sealed_step}")
            return
        number = self._start_source(move, back, back.sealed_step)
        wait_training(move, move.source_group, number)
        move.note(f"{plan.run_id} runs on {source.name} again, from step {back.sealed_step}")

    def _start_source(self, move: Migration, fence: records.Fence, step: int | None) -> int:
        """The source's attempt under ``fence``: the one that an earlier try of this rollback started, where it lives,
        else a new one from the newest checkpoint (``step-<step>`` where that is given)."""
        plan, source = move.plan, move.source
        found, described = move.source_group.attempt_of_migration(plan.migration), move.source_group.describe()
        old = move.journal.known("sealing_attempt", described["attempt"])
        ours = found is not None and found["attempt"] > old and found["epoch"] == fence.epoch
        if (
            found is not None
            and ours
            and (found["running"] or (found["status"] or {}).get("state") == records.FINISHED)
        ):
            return int(found["attempt"])
        if not ours:
            move.source_group.wait_exited(old)  # it is sealed or has said `stopped`, and takes a moment to end
        points = [
            point
            for point in described["checkpoints"]
            if point["complete"] and point["accepted"] and step in (None, point["step"])
        ]
        if not points:
            what = "any complete checkpoint" if step is None else f"checkpoint step {step}"
            raise MidstreamError(f"{source.name} has lost {what}", "midstream --checkpoints RUN")
        point = max(points, key=lambda point: (point["step"], point["attempt"]))
        move.source_group.hand_out_checkpoint(point["name"])
        order = records.Command(
            records.RESTORE,
            epoch=fence.epoch,
            checkpoint=point["name"],
            root_digest=point["root_digest"],
            step=point["step"],
            migration=plan.migration,
        )
        known = [move.journal.known(name, 0) for name in ("target_attempt", "standby_attempt")]
        at_least = max(described["attempt"], *known) + 1
        return move.start(move.source_group, order, holder=fence.owner, at_least=at_least)
