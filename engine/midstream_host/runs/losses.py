"""Losses that an attempt has logged, by step.

Runs on the host; standard library only.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, TypedDict

from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, float_of, int_of, object_or_empty
from midstream_host.declarations import reads
from midstream_host.shapes import Measured

_LoggedStep = TypedDict("_LoggedStep", {"global_step": int, "train/loss": Measured})


_OtherKeys = TypedDict(
    "_OtherKeys",
    {
        "batch_digest": str,
        "batch_elements": int,  # numbers in the batches of the step
        "time": float,
        "optim/learning_rate": Measured,
        "epoch": Measured,
        "progress": Measured,  # a counter of examples or tokens since the run's beginning
    },
    total=False,
)
EPOCHS = ("train/epoch", "epoch")
# Counters of a trainer's own: what the run file names, Megatron and NeMo, transformers, torchtitan.
COUNTERS = ("samples", "consumed_samples", "train/num_input_tokens_seen", "num_input_tokens_seen", "n_tokens_seen")


class MetricsRow(_LoggedStep, _OtherKeys):
    """A row of an attempt's metrics, reduced to the keys that comparisons need."""


def reduced(row: JsonObject) -> MetricsRow:
    """Return the keys of a row that comparisons need.

    A number of null is NaN: the file has no form for it.
    """
    kept: MetricsRow = {"global_step": int_of(row["global_step"]), "train/loss": _number(row["train/loss"])}
    if "batch_digest" in row:
        kept["batch_digest"] = str(row["batch_digest"])
    elements = row.get("batch_elements")
    if type(elements) is int:
        kept["batch_elements"] = elements
    for name in EPOCHS:
        if name in row:
            kept["epoch"] = _number(row[name])
    for name in COUNTERS:
        if name in row and "progress" not in kept:
            kept["progress"] = _number(row[name])
    if "time" in row:
        kept["time"] = float_of(row["time"])
    if "optim/learning_rate" in row:
        kept["optim/learning_rate"] = _number(row["optim/learning_rate"])
    return kept


def _number(value: JsonValue) -> Any:
    return math.nan if value is None else value


def counted(root: str, run_id: str, attempt: int) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a row of an attempt counts, by the start that wrote it.

    A superseded start may have written to the same file after the next one had begun. Rows of an earlier version have
    no start, and count. Raises RecordError where fence or lineage cannot be read.
    """
    paths = records.RunPaths(root, records.check_run_id(run_id))
    fence, lineage = records.Fence.read_or_none(paths.fence), records.Lineage.read_or_none(paths.lineage)
    epochs = {entry.attempt: entry.epoch for entry in lineage.entries} if lineage is not None else {}
    limits: Dict[int, float] = {}

    def counts(row: JsonObject) -> bool:
        start = records.start_of(row)
        if fence is None or start is None:
            return True
        if start not in limits:
            limits[start] = fence.start_limit(epochs.get(attempt, 1), start)
        return int_of(row["global_step"]) + 1 <= limits[start]

    return counts


@reads()
def rows(root: str, run_id: str, attempt: int, first: int = 0, last: Optional[int] = None) -> List[MetricsRow]:
    """Return the rows with a loss of an attempt's steps ``first`` to ``last``.

    A partial line is left out, and so is what a superseded start wrote past its end.

    Args:
        root: Root directory of the host.
        run_id: The run.
        attempt: Number of the attempt.
        first: First step.
        last: Last step; None: to the end.
    """
    collected: List[MetricsRow] = []
    counts = counted(root, run_id, attempt)
    try:
        with records.open_regular(
            records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt).metrics
        ) as file:
            for line in file:
                try:
                    value: JsonValue = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                row = object_or_empty(value)
                step = row.get("global_step")
                if "train/loss" not in row or not isinstance(step, int):
                    continue
                if step >= first and (last is None or step <= last) and counts(row):
                    collected.append(reduced(row))
    except FileNotFoundError:
        return []
    return collected
