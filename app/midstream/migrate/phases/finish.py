"""After enough healthy steps the source is retired by the fence. Nothing is deleted."""

from __future__ import annotations

from midstream.errors import MidstreamError
from midstream.migrate.execution.migration import Migration, NeedsOperator, ways_on
from midstream.migrate.failover.preemption import unless_preempted
from midstream.migrate.model import FINISH
from midstream.migrate.phases.cutover import bring_history
from midstream.watch.snapshot import RunView
from midstream_engine import records

HEALTHY_TIMEOUT = 7 * 86400.0


class Finish:
    """Waits for `--healthy-steps` updates on the target, then gives up the way back."""

    name = FINISH

    def run(self, move: Migration) -> None:
        plan, sealed = move.plan, move.journal.known("sealed")
        attempt = move.journal.known("target_attempt")
        goal = sealed["step"] + plan.healthy_steps

        def decided(run: RunView) -> bool:
            if run.status is None or run.attempt < attempt:
                return False
            ended = run.state in records.ENDED or run.state == "lost"
            return ended or run.status.step >= goal or run.epoch > plan.epoch

        run = move.wait_for(f"step {goal} on the target", plan.target_host, decided, HEALTHY_TIMEOUT)
        step = run.status.step if run.status else 0
        if run.epoch > plan.epoch and run.fence is not None:
            move.note(f"{plan.run_id} was moved on to {run.fence.owner} (epoch {run.epoch})")
        elif step < goal and run.state != records.FINISHED:
            message = run.status.message if run.status else ""
            raise NeedsOperator(
                f"the run on {plan.target} ended at step {step} ({run.state}{': ' + message if message else ''}), "
                f"before {plan.healthy_steps} healthy steps",
                ways_on(move),
            )
        else:
            self._last_words(move)
        with unless_preempted(move, move.source_group, "its pin goes with it"):
            move.source_group.checkpoint_store.unpin(plan.migration)
        if plan.source != plan.target_host:
            self._remove_secrets(move)
        if plan.source != plan.target_host:
            move.note(f"{plan.source} is retired: its copy of {plan.run_id} stays as it is, under epoch {plan.epoch}")

    @staticmethod
    def _remove_secrets(move: Migration) -> None:
        """What launches left on the source for engines that will not start there again."""
        try:
            move.source_group.remove_secrets()
        except MidstreamError as error:
            move.note(f"{error.message}; secrets of {move.plan.run_id} may be left there, in its .secrets directory")

    @staticmethod
    def _last_words(move: Migration) -> None:
        """What the source's trackers and log said as it ended, after the history had left it. The run needs none of it:
        a source that is gone by now is no reason to fail."""
        try:
            bring_history(move, resolved=True)
        except MidstreamError as error:
            move.note(f"{error.message}; the last lines of the source's log stay there")
