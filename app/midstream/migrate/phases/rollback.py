"""Roll a migration back: undo its phases in reverse order."""

from __future__ import annotations

import time

from midstream.errors import HostError
from midstream.migrate.journal.facts import Facts
from midstream.migrate.journal.phase_names import ROLLBACK
from midstream.migrate.phases import phases
from midstream.migrate.steps.migration import Migration
from midstream.migrate.steps.preemption import PreemptedError, preempted
from midstream.migrate.steps.rollback_outcome import not_running, refuse_moved_on


class Rollback:
    """Run like a phase; each undo can be repeated.

    The source starts only after the target is closed: its process has exited and its fence names the source, or it
    was never started. A migration without the source's migration lock changes nothing.
    """

    name = ROLLBACK

    def run(self, migration: Migration) -> None:
        try:
            for phase in reversed(phases()):
                phase.undo(migration)
            refuse_moved_on(migration)
            migration.journal.record(Facts(rolled_back_at=time.time(), not_running=not_running(migration)))
        except (HostError, PreemptedError) as error:
            provider_report = preempted(migration.fleet, migration.source_group.target)
            if not provider_report or migration.journal.facts.sealed is not None:
                raise
            # Unsealed, no engine was started on the target; and on the source no engine runs.
            migration.note(f"{error.message}; {provider_report}: there is no source to return to")
            migration.journal.record(Facts(rolled_back_at=time.time(), not_running=""))

    def undo(self, migration: Migration) -> None:
        """Nothing: a rollback is completed, not undone."""
