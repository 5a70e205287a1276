"""Small records of a run directory: its checkpoint store, pins and migration lock."""

from __future__ import annotations

import dataclasses
from typing import Optional

from midstream_core.records.field_forms import CHECKPOINT_NAME, NAME, RUN_ID, RUN_ID_OR_EMPTY
from midstream_core.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class Pin(JsonRecord):
    """``pins/<migration>.json``: protection of a checkpoint from retention.

    Retention may not delete ``checkpoint`` before ``expires``.
    """

    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})
    expires: float


@dataclasses.dataclass(frozen=True)
class Store(JsonRecord):
    """``store.json``: location of the run's checkpoints in a store.

    Checkpoints are under ``<url>/runs/<run_id>/checkpoints``, not in this directory, with pins and fence beside them:
    several hosts may write there.
    """

    url: str  # of a prefix in a bucket


@dataclasses.dataclass(frozen=True)
class MigrationLock(JsonRecord):
    """``migration_lock.json``: the one migration that may act on this host.

    Only this migration may send commands or move the fence to ``epoch``. The lock ends where ``expires`` has passed
    before that epoch began. Once the epoch has begun, the lock records who began it.
    """

    migration: str = dataclasses.field(metadata={"form": RUN_ID})
    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})  # the target
    expires: float
    # Process of the migration that may start the target, by a random number of its own. Empty: none may; None: not
    # recorded, by an older version.
    start_allowed: Optional[str] = dataclasses.field(default=None, metadata={"form": RUN_ID_OR_EMPTY})
    released: bool = False  # the migration was rolled back, and no process of it acquires the lock again

    @classmethod
    def held_or_none(cls, path: str) -> Optional[MigrationLock]:
        """Read a lock that is not released; None without one. Errors as of `read_or_none`."""
        lock = cls.read_or_none(path)
        return None if lock is None or lock.released else lock
