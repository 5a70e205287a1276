"""A program of a host, and the types of the lines that it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
Report = TypeVar("Report")
Events = Mapping[str, type[Report]]  # name of an event -> the type of its line


@dataclass(frozen=True)
class ReportingProgram(Generic[P, Report]):
    """A program of `midstream_host` that prints one JSON line for each event."""

    program: Callable[P, Any]
    events: Events[Report]
