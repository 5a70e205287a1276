"""What a repair would do with one damaged file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Undetermined(Exception):
    """The evidence does not determine a record; the message says what is missing."""


@dataclass(frozen=True)
class Proposal:
    """For one file of one host: the record that belongs there, or why that is not known."""

    host: str
    run_id: str
    file: str  # by path in the run's directory
    wrong: str  # what is wrong with it
    value: Mapping[str, Any] | None = None  # None: nothing needs to be there; the file is set aside
    evidence: Sequence[str] = ()
    missing: str = ""  # why it is not determined; empty where it is

    @property
    def determined(self) -> bool:
        return not self.missing
