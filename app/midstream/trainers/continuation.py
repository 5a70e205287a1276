"""State that a resume continues with, on the number of processes that it has."""

from __future__ import annotations

from dataclasses import replace

from midstream.counts import count
from midstream.trainers.registry import TRAINERS
from midstream_host.driver.run_file import NO, UNKNOWN, YES, RunFile, StoredContents

_STRENGTH = (NO, UNKNOWN, YES)


def stored_for(run: RunFile, before: int, after: int) -> StoredContents:
    """Return what a checkpoint of ``before`` processes has for a resume on ``after``.

    The result never exceeds what the run file states.
    """
    if before == after:
        return run.stored
    table = TRAINERS[run.trainer].elsewhere
    return replace(
        run.stored,
        random_state=_weaker(run.stored.random_state, table.random_state),
        data_position=_weaker(run.stored.data_position, table.data_position),
    )


def changes_of(run: RunFile, before: int, after: int) -> tuple[str, ...]:
    """Return what changes with the number of processes besides, one line each."""
    if before == after:
        return ()
    table = TRAINERS[run.trainer].elsewhere
    return (*table.changes, *(table.changes_from_one if 1 in (before, after) else ()))


def processes_text(before: int, after: int) -> str:
    """Return both numbers of processes, or the one that stays."""
    return count(before, "process", "processes") + (f" -> {after}" if after != before else "")


def _weaker(own: str, other: str) -> str:
    return min(own, other, key=_STRENGTH.index)
