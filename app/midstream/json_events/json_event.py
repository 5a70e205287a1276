"""One kind of JSON line: its fields and their meanings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

RUN, HOST, TARGET = "the run's id", "the host's name in the fleet file", "the target's name in the fleet file"
MIGRATION = "the migration's id"


class JsonEvent(NamedTuple):
    """One kind of JSON line.

    Attributes:
        name: Value of its field ``event``.
        of: Modes that print it.
        text: What it is about, and when it is printed.
        fields: Field -> meaning, without ``event``. A field that does not apply may be missing.
        more: What other fields are, where their names are not fixed.
    """

    name: str
    of: tuple[str, ...]
    text: str
    fields: Mapping[str, str]
    more: str = ""
