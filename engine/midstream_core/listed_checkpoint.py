"""A checkpoint in a list: of a run directory, a bucket, a host's report."""

from __future__ import annotations

import dataclasses
import sys
from typing import Dict, Iterable, Optional, Tuple

from midstream_core.json_types import JsonValue
from midstream_core.records import CHECKPOINT_NAME

# A fleet of 100,000 runs has several times as many.
_SLOTS: Dict[str, bool] = {"slots": True} if sys.version_info >= (3, 10) else {}


@dataclasses.dataclass(frozen=True, **_SLOTS)
class ListedCheckpoint:
    """A directory of a checkpoint; without a readable manifest it has the defaults."""

    name: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})
    step: int
    attempt: int
    complete: bool  # it has a readable manifest; else its save was interrupted or is running, or it is damaged
    accepted: bool  # by the fence
    size: int = 0  # bytes
    created: float = 0.0
    root_digest: str = ""
    epoch: int = 0
    pinned: bool = False
    damaged: str = ""  # why its manifest, which exists, cannot be read
    start: int = 0  # number of the start that committed it

    @property
    def usable(self) -> bool:
        """Whether a run can continue from it: complete, and accepted by the fence."""
        return self.complete and self.accepted

    @property
    def order(self) -> Tuple[int, int]:
        """Sort key: the newest checkpoint of the newest attempt is last."""
        return self.step, self.attempt

    def to_json(self) -> Dict[str, JsonValue]:
        """Return its fields by name."""
        return {name: getattr(self, name) for name in _FIELDS}


_FIELDS = tuple(field.name for field in dataclasses.fields(ListedCheckpoint))


def newest_checkpoint(checkpoints: Iterable[ListedCheckpoint]) -> Optional[ListedCheckpoint]:
    """Return the newest of some checkpoints; None without any."""
    return max(checkpoints, key=lambda checkpoint: checkpoint.order, default=None)
