"""Facts about the run for trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class RunFacts:
    """The run and the attempt that a tracker follows."""

    run_id: str
    attempt: int
    first_step: int
    directory: str  # of the attempt; trackers that need files put them here
    config: Mapping[str, Any]  # resolved
