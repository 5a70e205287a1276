"""An event of a migration: one line of its journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from midstream_core import json_shapes

STAGE = "stage"  # the event of a stage of `duration.stages`: it started, goes on, is done


@dataclass(frozen=True)
class Event:
    """One line of the journal, and of ``--json``.

    ``event``: ``phase`` (a phase began, went on, ended), ``check`` (a preflight line), ``command`` (what was run where:
    the command log; its ``does`` is a line of shell that does the same, its ``shows`` one that shows the result),
    ``note`` (one line for the user), ``stage`` (a part of its duration), ``result`` (the end).
    """

    event: str
    time: float
    phase: str = ""
    state: str = ""
    message: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        value = {key: item for key, item in asdict(self).items() if item not in ("", {})}
        detail = value.pop("detail", {})
        return {**value, **{key: item for key, item in detail.items() if key not in value}}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read an event. ShapeError if a field is missing or has another type."""
        json_shapes.check(cls, value)
        names = ("event", "time", "phase", "state", "message")
        return cls(
            **{name: value[name] for name in names if name in value},
            detail={key: item for key, item in value.items() if key not in names},
        )

    def line(self) -> str:
        return json.dumps(self.to_json())


def shell_line_of(event: Event) -> tuple[str, str]:
    """Return a shell line to paste for a line of the command log.

    Before it, the pair has what it is to the command that was run.

    The line is empty where the command has no shell form and no line shows its result.
    """
    does, shows = str(event.detail.get("does", "")), str(event.detail.get("shows", ""))
    if does:
        return "same as:", does
    return ("to see the result:", shows) if shows else ("no command line does it", "")
