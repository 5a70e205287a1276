"""Refuse to act on a run of which a record cannot be read."""

from __future__ import annotations

from collections.abc import Sequence

from midstream.errors import DamagedError
from midstream.hosts.rpc.result_checks import repair_hint
from midstream.watch.snapshot import RunView


def refuse_damaged(copies: Sequence[RunView]) -> None:
    """DamagedError where any copy of the run has records that are there and cannot be read: they may say that the run
    is elsewhere, or that it was sealed."""
    for run in copies:
        if run.damaged:
            raise DamagedError(describe(run), "Damaged", repair_hint(run.host, run.run_id))


def describe(run: RunView) -> str:
    """One line that names the host, the run, each damaged file and what is wrong with it."""
    return f"{run.host}: run {run.run_id}: " + "; ".join(f"{name}: {why}" for name, why in run.damaged)
