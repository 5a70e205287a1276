"""Evidence that an engine writes: what it restored, and how far a replica drifted."""

from __future__ import annotations

import dataclasses
from typing import Dict, List, Optional

from midstream_core.json_types import RecordFields
from midstream_core.records.field_forms import CHECKPOINT_NAME
from midstream_core.records.record import JsonRecord


@dataclasses.dataclass(frozen=True)
class Restore(JsonRecord):
    """``restore.json``: the restored checkpoint.

    Written before any update is reported.
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
    seconds: Dict[str, float] = dataclasses.field(default_factory=lambda: {})  # before the first update, by phase
    divided_from: int = 0  # data-parallel processes that saved another trainer's checkpoint, which was divided
    divided_over: int = 0  # processes that it was divided over; 0: it was not
    divided_digests: Dict[str, str] = dataclasses.field(default_factory=lambda: {})  # SHA-256, equal before and after


@dataclasses.dataclass(frozen=True)
class TrainerEvidence(JsonRecord):
    """``trainer_evidence.json``: what another trainer did after a restore.

    The trainer's driver writes the file, and writes it again when something is added. A host of an older version has
    none: what it would show is then not checked.
    """

    step: int  # of the checkpoint that the trainer was started from
    rows: int = 0  # with a loss, logged since the start, of whatever step
    first_row: Optional[int] = None  # step of the first of them
    lowest_row: Optional[int] = None  # lowest step of those that the trainer has done after its start
    rows_below: int = 0  # of steps below the checkpoint's, done after the start
    counted: str = ""  # field of the source that counts the rows of a process; the checkpoint's step is added to it
    files: int = 0  # of the checkpoint
    opened: int = 0  # of these, opened by a process of this host between the start and the first row
    opened_until: str = ""  # ``first row``, ``end`` of the trainer; empty: not yet
    unwatched: str = ""  # why openings could not be seen, in one line
    older_checkpoint: str = ""  # path of one that was written since the start, of a step below the checkpoint's
    older_checkpoint_step: Optional[int] = None
    unrecorded: str = ""  # why it has no row, although it has written checkpoints for minutes

    @property
    def contradiction(self) -> str:
        """Evidence that the trainer did not continue; empty where there is none."""
        if self.rows_below:
            return "the trainer logged step {} after its start from step {}".format(self.lowest_row, self.step)
        if self.older_checkpoint:
            return "the trainer wrote {} of step {} after its start from step {}".format(
                self.older_checkpoint, self.older_checkpoint_step, self.step
            )
        return ""


@dataclasses.dataclass(frozen=True)
class ShardDrift(JsonRecord):
    """Parameter drift of one process's part of the parameters: its shards.

    Distances are |a-b| / |b| in Euclidean norms, of the replica's a and the sealed b.
    """

    process: int
    host: str
    distance: float
    worst: float  # the largest of the distances of its parts of the arrays
    worst_array: str
    parameters: int  # numbers that were compared
    norm: float  # |b|


@dataclasses.dataclass(frozen=True)
class ParameterDrift(JsonRecord):
    """``parameter_drift.json``: distance of a replica's parameters from sealed ones.

    The distance is measured where the replica takes over. Each of several processes measures its own shards; a
    parameter that several processes have counts for each.
    """

    step: int
    checkpoint: str = dataclasses.field(metadata={"form": CHECKPOINT_NAME})  # the sealed one
    root_digest: str  # the sealed one's; the objects that were read have the hashes of its manifest
    distance: float  # |a-b| / |b| over all parameters, Euclidean norm
    worst: float  # the largest of the arrays' own distances
    worst_array: str
    parameters: int  # numbers that were compared
    shards: List[RecordFields] = dataclasses.field(
        default_factory=lambda: [], metadata={"items": ShardDrift}
    )  # by process; empty where there is only one

    @property
    def shard_drifts(self) -> List[ShardDrift]:
        """The decoded shards."""
        return [ShardDrift.from_checked(entry) for entry in self.shards]
