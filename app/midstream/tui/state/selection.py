"""What is selected on a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Selection(NamedTuple):
    """What is selected on a screen: its name, what it is, and its JSON value."""

    name: str
    kind: str  # "run", "host", ...
    value: Mapping[str, Any]
