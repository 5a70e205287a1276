"""Evidence that an engine writes: what it restored, and how far a replica drifted."""

from __future__ import annotations

import dataclasses
from typing import Dict, List

from midstream_engine.records.field_forms import CHECKPOINT_NAME
from midstream_engine.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class Restore(JsonRecord):
    """``restore.json``: record of a restored checkpoint.

    It is written after the restore, before the first update.
    """

    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})
    step: int
    root_digest: str  # recomputed from the bytes that were read
    expected_root_digest: str
    recorded_losses: List[float]  # reference losses, as the checkpoint's writer measured them
    recomputed_losses: List[float]  # reference losses of the restored state
    losses_error: float  # largest relative difference
    batch_digest: str  # of batch ``step``, the next one to be consumed
    recorded_batch_digest: str  # of the same batch, as the writer expected it
    devices: int = 0
    seconds: Dict[str, float] = dataclasses.field(default_factory=lambda: {})


@dataclasses.dataclass(frozen=True)
class ParameterDrift(JsonRecord):
    """``parameter_drift.json``: distance of a replica's parameters from sealed ones.

    It is measured where the replica takes over.
    """

    step: int
    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})  # the sealed one
    root_digest: str  # recomputed from the bytes that were read
    distance: float  # |a-b| / |b| over all parameters, Euclidean norm
    worst: float  # the largest of the arrays' own distances
    worst_array: str
    parameters: int  # numbers that were compared
