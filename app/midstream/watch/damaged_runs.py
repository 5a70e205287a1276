"""Refuse to act on a run with unreadable records."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.errors import DamagedError
from midstream.hosts.rpc.result_checks import repair_hint
from midstream.watch.snapshot import RunView


def refuse_damaged(copies: Sequence[RunView]) -> None:
    """Raise DamagedError if any copy of the run has unreadable records.

    Such a record may contain that the run has another owner, or that it was sealed.
    """
    for run in copies:
        if run.damaged:
            raise DamagedError(describe(run), "Damaged", repair_hint(run.host, run.run_id))


def describe(run: RunView) -> str:
    """Return one line with the host, the run, each damaged file and its error."""
    return f"{run.host}: run {run.run_id}: " + "; ".join(f"{name}: {why}" for name, why in run.damaged)
