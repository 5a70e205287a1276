"""Small records of a run directory: its checkpoint store, pins and migration lock."""

from __future__ import annotations

import dataclasses

from midstream_engine.records.field_forms import CHECKPOINT_NAME, NAME, RUN_ID
from midstream_engine.records.record import JsonRecord


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

    They are under ``<url>/runs/<run_id>/checkpoints``, not in this directory.

    Pins and fence are stored beside them too, because several hosts may write there.
    """

    url: str  # of a prefix in a bucket


@dataclasses.dataclass(frozen=True)
class MigrationLock(JsonRecord):
    """``migration_lock.json``: the one migration that may act on this host.

    It alone may send commands or move the fence to ``epoch``.

    It ends where ``expires`` has passed before that epoch began. Once the epoch has begun, it records who began it.
    """

    migration: str = dataclasses.field(metadata={"form": RUN_ID})
    epoch: int
    owner: str = dataclasses.field(metadata={"form": NAME})  # the target
    expires: float
