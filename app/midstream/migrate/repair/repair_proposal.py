"""Proposal for the repair of one damaged file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class UndeterminedError(Exception):
    """The evidence does not determine a record; the message names what is missing."""


@dataclass(frozen=True)
class RepairProposal:
    """Replacement of one file on one host, or the reason why it is not determined."""

    host: str
    run_id: str
    file: str  # path in the run's directory
    wrong: str  # what is wrong with it
    value: Mapping[str, Any] | None = None  # None: no record is needed; the file is moved aside
    evidence: Sequence[str] = ()
    missing: str = ""  # reason why it is not determined; empty where it is

    @property
    def determined(self) -> bool:
        return not self.missing
