"""Retire the source after enough healthy steps on the target. Nothing is deleted."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from midstream.counts import count
from midstream.errors import MidstreamError, RemoteError
from midstream.migrate.journal.facts import required
from midstream.migrate.journal.phase_names import FINISH
from midstream.migrate.phases.cutover import copy_run_history
from midstream.migrate.steps.migration import Migration, NeedsOperatorError, ways_to_continue
from midstream.migrate.steps.observation import wait_for
from midstream.migrate.steps.preemption import unless_preempted
from midstream.migrate.steps.rollback_outcome import join_rollback
from midstream.watch.snapshot import RunView
from midstream_core import records
from midstream_core.json_types import LoggedRow

HEALTHY_TIMEOUT = 7 * 86400.0  # seconds
NEAR = 64  # rows
DECISION_POLL = 0.2  # seconds


def losses_are_lost(curve: Sequence[LoggedRow], step: int) -> bool:
    """Return whether losses are NaN or infinite from ``step`` on, and were not before.

    A single one does not count: a run may pass over such a batch.

    Args:
        curve: Spliced rows of the run; the newest `NEAR` on either side of ``step`` count.
        step: First step on the target.
    """
    before: list[float] = []
    after: list[float] = []
    for row in reversed(curve):
        loss, side = row.get("train/loss"), after if row["global_step"] >= step else before
        if isinstance(loss, int | float) and len(side) < NEAR:
            side.append(loss)
        if len(before) == NEAR:
            break
    return bool(after) and not any(map(math.isfinite, after)) and any(map(math.isfinite, before))


class Finish:
    """Wait for `--healthy-steps` updates on the target; then rollback is over."""

    name = FINISH

    def run(self, migration: Migration) -> None:
        plan, sealed = migration.plan, required(migration.journal.facts.sealed, "sealed")
        attempt = required(migration.journal.facts.target_attempt, "target_attempt")
        goal = sealed.step + plan.policy.healthy_steps

        def decided(run: RunView) -> bool:
            if run.status is None or run.attempt < attempt:
                return False
            if plan.policy.healthy_steps:
                migration.clock.share = min(1.0, max(0, run.status.step - sealed.step) / plan.policy.healthy_steps)
            ended = run.state in records.ENDED or run.state == "lost"
            return ended or run.status.step >= goal or run.epoch > plan.epoch or bool(run.status.contradiction)

        run = wait_for(migration, f"step {goal} on the target", plan.target_host, decided, HEALTHY_TIMEOUT)
        step = run.status.step if run.status else 0
        if run.epoch > plan.epoch and run.fence is not None:
            join_rollback(migration)
            migration.note(f"{plan.run_id} was migrated on to {run.fence.owner} (ownership {run.epoch})")
        elif run.status is not None and run.status.contradiction:  # seen only after the certificate
            raise NeedsOperatorError(
                f"{run.status.contradiction}: the certificate is not valid",
                f"midstream --rollback {plan.migration} --yes goes back to step {sealed.step} on {plan.source}",
            )
        elif step < goal and run.state != records.FINISHED:
            message = run.status.message if run.status else ""
            raise NeedsOperatorError(
                f"the run on {plan.target} ended at step {step} ({run.state}{': ' + message if message else ''}), "
                f"before {count(plan.policy.healthy_steps, 'healthy step')}",
                ways_to_continue(migration),
            )
        elif losses_are_lost(run.curve, sealed.step):
            raise NeedsOperatorError(
                f"no loss of the run on {plan.target} has been finite since step {sealed.step}, "
                f"where {plan.source} had finite ones",
                f"see its log; midstream --rollback {plan.migration} --yes goes back to step {sealed.step} on "
                f"{plan.source}, midstream --continue {plan.migration} looks again",
            )
        else:
            self._copy_last_lines(migration)
        self._await_decision(migration)
        join_rollback(migration)  # what was shown may be older: this process may have been suspended
        with unless_preempted(
            migration.fleet, migration.source_group.target, migration.note, "its pin is not released"
        ):
            self._unpin(migration)
        if plan.source != plan.target_host:
            self._remove_secrets(migration)
        join_rollback(migration)  # last of all: nothing after this waits for a host
        if plan.source != plan.target_host:
            migration.note(
                f"{plan.source} is retired: its copy of {plan.run_id} stays unchanged, under ownership {plan.epoch}"
            )

    def undo(self, migration: Migration) -> None:
        """Nothing: a finished migration is not rolled back."""

    @staticmethod
    def _await_decision(migration: Migration) -> None:
        """Wait while the user decides whether to roll the migration back."""
        if migration.directory.is_held():
            migration.note("waits: its user decides whether to roll it back")
        while migration.directory.is_held():
            time.sleep(DECISION_POLL)
        migration.check_requests()

    @staticmethod
    def _unpin(migration: Migration) -> None:
        """Remove the pin of the sealed checkpoint on the source.

        The run does not need the source any more: one that answers and cannot remove it, such as one with a read-only
        disk, does not prevent the end of the migration.
        """
        try:
            migration.source_group.checkpoint_store.unpin(migration.plan.migration)
        except RemoteError as error:
            migration.note(f"{error.message}; the pin of its checkpoint stays on {migration.plan.source}")

    @staticmethod
    def _remove_secrets(migration: Migration) -> None:
        """Remove the secrets of earlier launches from the source."""
        try:
            migration.source_group.remove_secrets()
        except MidstreamError as error:
            migration.note(
                f"{error.message}; secrets of {migration.plan.run_id} may remain there, in its .secrets directory"
            )

    @staticmethod
    def _copy_last_lines(migration: Migration) -> None:
        """Copy what the source logged after its history was copied.

        The run does not need these lines, so an unreachable source is no failure.
        """
        try:
            copy_run_history(migration, resolved=True)
        except MidstreamError as error:
            migration.note(f"{error.message}; the last lines of the source's log stay there")
