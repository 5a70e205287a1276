"""Steps that a rollback discards, and whether they are known."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from midstream.counts import count
from midstream.migrate.journal.migration_view import lost_attempt

if TYPE_CHECKING:
    from midstream.migrate.journal.migration_view import MigrationView
    from midstream_core import records


def discarded(
    view: MigrationView,
    status: records.Status | None,
    fence: records.Fence | None,
    attempts: Collection[int] = (),
    *,
    unreadable: str = "",
    unreachable: str = "",
) -> str:
    """Return which steps a rollback would discard, as text; empty for none.

    The target counts also where the journal has no start of it: the journal may be damaged, or older than the
    migration, because it was restored from a backup or another machine has continued a copy of it.

    Args:
        view: The migration.
        status: Status of the newest attempt on the target.
        fence: The run's fence there.
        attempts: Numbers of the attempts there.
        unreadable: Why the records of the target cannot be read.
        unreachable: Why the target does not answer.
    """
    plan = view.plan
    may_train = view.facts.relaunching or any(line.startswith("journal") for line in view.damage)
    if unreadable:
        return f"a rollback discards the steps of {plan.target}, which cannot be read: {unreadable}"
    if unreachable:
        words = f"a rollback discards the steps of {plan.target}, which is unreachable: {unreachable}"
        return words if may_train else ""
    if lost := lost_attempt(plan, view.facts, attempts):
        return lost
    if not may_train and (status is None or status.epoch != plan.epoch):
        return ""  # a standby at most; with one run directory, the source's own attempt
    steps = view.steps_given_up(status.step if status else None, fence)
    return f"a rollback discards {count(steps, 'step')} of {plan.target}" if steps else ""
