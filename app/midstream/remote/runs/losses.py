"""Losses that an attempt has logged, by step.

Runs on the host; standard library only.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, List, Mapping, Optional, TypedDict, cast

from midstream.remote.declarations import reads
from midstream.remote.shapes import Measured
from midstream_engine import records

_LoggedStep = TypedDict("_LoggedStep", {"global_step": int, "train/loss": Measured})


_OtherKeys = TypedDict("_OtherKeys", {"batch_digest": str, "time": float, "optim/learning_rate": Measured}, total=False)


class MetricsRow(_LoggedStep, _OtherKeys):
    """A row of an attempt's metrics, reduced to the keys that comparisons need."""


def reduced(row: Mapping[str, Any]) -> MetricsRow:
    """Return the keys of a row that comparisons need.

    A number of null is NaN: the file has no form for it.
    """
    kept: MetricsRow = {"global_step": row["global_step"], "train/loss": _number(row["train/loss"])}
    if "batch_digest" in row:
        kept["batch_digest"] = row["batch_digest"]
    if "time" in row:
        kept["time"] = row["time"]
    if "optim/learning_rate" in row:
        kept["optim/learning_rate"] = _number(row["optim/learning_rate"])
    return kept


def _number(value: Any) -> Any:
    return math.nan if value is None else value


@reads()
def rows(root: str, run_id: str, attempt: int, first: int = 0, last: Optional[int] = None) -> List[MetricsRow]:
    """Return the rows with a loss of an attempt's steps ``first`` to ``last``.

    A partial line is left out.

    Args:
        root: Root directory of the host.
        run_id: The run.
        attempt: Number of the attempt.
        first: First step.
        last: Last step; None: to the end.
    """
    found: List[MetricsRow] = []
    try:
        with records.open_regular(
            records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt).metrics
        ) as file:
            for line in file:
                try:
                    value: Any = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                row = cast("Dict[str, Any]", value) if isinstance(value, dict) else {}
                if "train/loss" not in row or "global_step" not in row:
                    continue
                if row["global_step"] >= first and (last is None or row["global_step"] <= last):
                    found.append(reduced(row))
    except FileNotFoundError:
        return []
    return found
