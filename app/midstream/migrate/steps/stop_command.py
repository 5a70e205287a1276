"""The command that stops the source."""

from __future__ import annotations

from midstream.migrate.journal.facts import Facts
from midstream.migrate.steps.migration import Migration
from midstream_core import records
from midstream_host.runs import standby_state


def commanded_attempt(migration: Migration) -> int | None:
    """Return the source's attempt that this migration has commanded to stop.

    It is journaled; None without one. The journal may be a copy from before the command: what the source has counts.
    """
    facts, plan, source = migration.journal.facts, migration.plan, migration.source
    if facts.sealing_attempt is not None:
        return facts.sealing_attempt
    number = migration.source_group.describe().attempt
    command = (
        source.call(standby_state.command)(root=source.root, run_id=plan.run_id, attempt=number) if number else None
    )
    if command is None or (command.action, command.migration) != (records.STOP, plan.migration):
        return None
    migration.journal.record(Facts(source_was_running=True, sealing_attempt=number, stop_sequence=command.sequence))
    migration.note(f"attempt {number} has this migration's command to stop, which the journal lacks")
    return number


def adopt_stop(migration: Migration) -> int | None:
    """Return the sequence of the stop command, and journal it; None if none was sent.

    The process that sent it may have been killed, or have lost the answer, before it journaled the number.
    """
    facts, plan, source = migration.journal.facts, migration.plan, migration.source
    if facts.stop_sequence is None and facts.sealing_attempt is not None:
        command = source.call(standby_state.command)(
            root=source.root, run_id=plan.run_id, attempt=facts.sealing_attempt
        )
        if command is not None and (command.action, command.migration) == (records.STOP, plan.migration):
            migration.journal.record(Facts(stop_sequence=command.sequence))
            migration.note(f"attempt {facts.sealing_attempt} has the command to stop already")
    return migration.journal.facts.stop_sequence
