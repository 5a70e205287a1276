"""The rule of a run's loss curve, written plainly: every step from the newest accepted attempt that has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midstream_core import records


def _accepts(fence: records.Fence, epoch: int, step: int, start: Any) -> bool:
    if type(start) is int and start > 0:
        return fence.accepts(epoch, step, start)
    return fence.accepts_epoch(epoch, step)


def splice(
    rows: Mapping[int, Sequence[Mapping[str, Any]]], lineage: records.Lineage, fence: records.Fence | None
) -> list[dict[str, Any]]:
    """Return the run's curve: every step from the newest accepted attempt that has it.

    Line ``k`` of an attempt is accepted where the fence accepts the state it led to, ``step-<k+1>``, of the start that
    wrote the line; without a start, of the attempt's epoch. ``rows`` has the rows of each attempt. The result's rows
    have the additional key ``attempt``; rows without a valid ``global_step`` are left out.
    """
    epochs = {entry.attempt: entry.epoch for entry in lineage.entries}
    chosen: dict[int, dict[str, Any]] = {}
    for attempt in sorted(rows):
        epoch = epochs.get(attempt, 1)
        for row in rows[attempt]:
            step = row.get("global_step")
            if type(step) is not int or step < 0:
                continue
            if fence is not None and not _accepts(fence, epoch, step + 1, row.get("start_number")):
                continue
            if "train/loss" in row or step not in chosen:
                chosen[step] = dict(row, attempt=attempt)
            else:
                chosen[step].update({key: value for key, value in row.items() if key not in ("time",)})
    return [chosen[step] for step in sorted(chosen)]
