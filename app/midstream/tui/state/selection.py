"""The selection of a screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Selection(NamedTuple):
    """The selection of a screen: its name, its kind, and its JSON value."""

    name: str
    kind: str  # "run", "host", ...
    value: Mapping[str, Any]


MAX_COMPARED = 64  # runs that are marked, and whose curves are drawn, at a time
