"""Losses that an attempt logged, by step, on the machine where they lie. A long run's metrics stay where they are."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional

from midstream_engine import records


def rows(root: str, run_id: str, attempt: int, first: int = 0, last: Optional[int] = None) -> List[Dict[str, Any]]:
    """The rows with a loss of steps ``first`` to ``last`` (to the end: None). A torn line witnesses nothing."""
    found = []
    try:
        with records.open_regular(
            records.RunPaths(root, records.check_run_id(run_id)).attempt(attempt).metrics
        ) as file:
            for line in file:
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if not isinstance(row, dict) or "train/loss" not in row or "global_step" not in row:
                    continue
                if row["global_step"] >= first and (last is None or row["global_step"] <= last):
                    found.append(row)
    except FileNotFoundError:
        return []
    return found
