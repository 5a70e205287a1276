"""Proposal for the repair of one damaged file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream_core import records


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
    adopts: records.Fence | None = None  # fence under which the host becomes the signed owner, by the user's consent
    begun: float = 0.0  # UTC seconds at which the run of this name began that the new records replace; 0: none
    newest: tuple[int, int] | None = None  # epoch and step of the newest complete checkpoint of what is adopted

    @property
    def determined(self) -> bool:
        return not self.missing
