"""The group of processes that save one checkpoint, and which of them writes what.

Messages go through the coordinator, not through collectives: those belong to the training step, which continues
during the save. Every process writes its own chunks and sends a *part*, the list of what it wrote, to process 0, which
checks that no chunk is missing, and commits. On several file systems each stores the chunks of its processes, all store
the small objects, and the manifest names the host of every object.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_engine.checkpoint.boxes import Box, overlap, volume, within
from midstream_engine.checkpoint.chunk_grid import chunks_of, grid_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.processes.coordinator_client import CoordinatorClient
from midstream_engine.processes.shared_file_systems import SharedFileSystems

GATHERED = 1 << 30  # bytes of chunks spread over processes that process 0 assembles, at most


@dataclasses.dataclass(frozen=True)
class SaveGroup:
    """The processes that save together, from the view of one of them.

    ``file_systems``: None if all share one, or a bucket; that is measured, not assumed.
    """

    client: CoordinatorClient
    sequence: int  # of this save: the same on all processes, another one for every attempt to save
    file_systems: SharedFileSystems | None = None
    timeout: float = 1800.0  # seconds that the others wait for a process that runs

    @property
    def process(self) -> int:
        return self.client.process

    @property
    def count(self) -> int:
        return self.client.count

    @property
    def leads(self) -> bool:
        """Whether this is process 0, which commits."""
        return self.process == 0

    @property
    def spread(self) -> bool:
        """Whether the processes write to several file systems."""
        return self.file_systems is not None and self.file_systems.spread

    @property
    def local_processes(self) -> list[int]:
        """The processes that write to the same file system as this one."""
        systems = self.file_systems
        return list(range(self.count)) if systems is None else systems.at(systems.first[self.process])

    @property
    def leads_locally(self) -> bool:
        """Whether this is the first process of its file system."""
        return self.local_processes[0] == self.process

    @property
    def leaders(self) -> list[int]:
        """The first process of each file system."""
        return [0] if self.file_systems is None else self.file_systems.leaders


def owner(array: HostArray, ordinal: int, chunk: Box, among: Collection[int] | None = None) -> int | None:
    """Return the process that writes chunk ``ordinal``; None if no process has it.

    The processes (of ``among``) that have all of the chunk take turns.
    """
    if array.parts_by_process is None:
        return 0 if among is None or 0 in among else min(among)
    able = [
        process
        for process, boxes in array.parts_by_process.items()
        if (among is None or process in among)
        and sum(volume(part) for box in boxes if (part := overlap(box, chunk)) is not None) == volume(chunk)
    ]
    return able[ordinal % len(able)] if able else None


def straddled(array: HostArray) -> list[Box]:
    """Return the chunks that no process has completely."""
    grid = grid_of(array.axes, array.shape, array.dtype)
    if not grid or array.parts_by_process is None:
        return []
    chunks = enumerate(chunks_of(array.shape, grid))
    return [chunk for ordinal, (_, chunk) in chunks if owner(array, ordinal, chunk) is None]


def check_owners(arrays: Sequence[HostArray]) -> None:
    """Check that process 0 can assemble the chunks that are spread over processes.

    The result is the same on all processes, before anything is written.

    Raises:
        CheckpointError: Such chunks have more than ``GATHERED`` bytes.
    """
    total = 0
    for array in arrays:
        chunks = straddled(array)
        total += sum(map(volume, chunks)) * numpy_dtype(array.dtype).itemsize
        if total > GATHERED:
            grid = grid_of(array.axes, array.shape, array.dtype)
            raise CheckpointError(
                f"{array.name}: no process has all of its chunk at {[start for start, _ in chunks[0]]}, "
                f"and such chunks have more than {GATHERED >> 20} MiB "
                f"(hint: give each process a part that its grid of {list(grid)} chunks divides)"
            )


def pieces_for_leader(array: HostArray, process: int) -> list[tuple[Box, np.ndarray]]:
    """Return the pieces that ``process`` sends to process 0.

    Process 0 packs small arrays and writes the chunks that no process has completely.
    """
    if array.parts_by_process is None or process == 0:
        return []
    first: dict[Box, int] = {}
    for other, boxes in array.parts_by_process.items():
        for box in boxes:
            first.setdefault(box, other)
    own = [(box, data) for box, data in array.pieces if first[box] == process]
    if not grid_of(array.axes, array.shape, array.dtype):
        return [(box, data[...]) for box, data in own]
    return [
        (shared, np.ascontiguousarray(data[within(shared, box)]))
        for chunk in straddled(array)
        for box, data in own
        if (shared := overlap(box, chunk)) is not None
    ]
