"""The lineage: the chain of a run's attempts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, List, Optional

from midstream_core.json_types import RecordFields, int_of
from midstream_core.records.field_forms import CHECKPOINT_NAME, NAME, RUN_ID, RUN_ID_OR_EMPTY
from midstream_core.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class LineageEntry(JsonRecord):
    """One attempt in the chain. ``last_step`` is None while it runs."""

    attempt: int
    epoch: int
    target: str = dataclasses.field(metadata={"form": NAME})
    devices: int
    device_kind: str
    first_step: int
    last_step: Optional[int] = None
    checkpoint: Optional[str] = dataclasses.field(
        default=None, metadata={"form": CHECKPOINT_NAME}
    )  # the one it started from; None for a fresh start
    root_digest: Optional[str] = None
    migration: str = dataclasses.field(default="", metadata={"form": RUN_ID_OR_EMPTY})
    started: float = 0.0


@dataclasses.dataclass(frozen=True)
class Lineage(JsonRecord):
    """``lineage.json``: the chain of attempts of a run, oldest first."""

    LIMIT: ClassVar[int] = 1 << 24

    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    attempts: List[RecordFields] = dataclasses.field(default_factory=lambda: [], metadata={"items": LineageEntry})

    @property
    def entries(self) -> List[LineageEntry]:
        """The attempts, oldest first."""
        return [LineageEntry.from_checked(entry) for entry in self.attempts]

    def with_entry(self, entry: LineageEntry) -> Lineage:
        """Return the lineage with ``entry`` added.

        An entry with the same attempt number is replaced.
        """
        others = [old for old in self.attempts if old["attempt"] != entry.attempt]
        return Lineage(self.run_id, sorted([*others, entry.to_json()], key=lambda old: int_of(old["attempt"])))
