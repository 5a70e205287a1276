"""Writer of an imported state that reads its source during the writing.

A record of what is written lets a killed import continue.

The state is divided into steps: some layers of the arrays that are made of the same bytes. Threads read steps ahead,
with CRCs and checks; others divide what was read into chunks, hash and write them. Memory has the running steps: less
than one and a half of the largest array, and of a stack of many layers less than two of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import queue
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from midstream_core.records import ObjectEntry
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointFullError
from midstream_engine.checkpoint.saving.checkpoint_writer import Written, describe_arrays, write_rest, written_of
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.checkpoint.train_document import TrainDocument
from midstream_engine.interop import import_record
from midstream_engine.interop.chunk_writer import ChunkStore, ChunkWriter, chunk_writers
from midstream_engine.interop.imported_array import ImportedArray, Piece

SYNC_BYTES = 1 << 30  # written between two syncs: at most this is repeated by a killed import
READERS, WRITERS = 2, 4  # threads: reading computes one checksum, writing two
LEAST = 64 << 20  # bytes that may be in memory, even if the arrays are smaller
_ROOM = 1.2  # bytes in memory, as a multiple of the largest step: the next ones are read while it is written
Progress = Callable[[str, int, int], None]  # name of the array, bytes done, bytes of all


@dataclass
class _Family:
    """Arrays of the same source bytes, with their chunk writers.

    Small arrays have their memory instead of writers.
    """

    arrays: list[ImportedArray]
    chunks: list[list[ChunkWriter]]
    small: list[np.ndarray]
    writing: bool = False

    @property
    def planes(self) -> int:
        return self.arrays[0].planes

    @property
    def plane_size(self) -> int:
        """Bytes."""
        return sum(array.size for array in self.arrays) // self.planes


@dataclass
class _Step:
    """Planes [first, last) of a family.

    ``read``: pieces of each plane by array, while they are needed.
    """

    family: _Family
    first: int
    last: int
    read: dict[int, list[list[Piece]]] = field(default_factory=dict)
    ready: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return self.family.plane_size * (self.last - self.first)

    def readers(self) -> list[Callable[[], None]]:
        return [partial(self._read, plane) for plane in range(self.first, self.last)]

    def _read(self, plane: int) -> None:
        source = self.family.arrays[0].read(plane)
        self.read[plane] = [array.parts(plane, source) for array in self.family.arrays]

    def writers(self) -> list[Callable[[], None]]:
        """Return the tasks that write the step, in any order."""
        work: list[Callable[[], None]] = []
        for number, array in enumerate(self.family.arrays):
            parts, out = self.family.chunks[number], self.family.small[number]
            pieces = [piece for _, read in sorted(self.read.items()) for piece in read[number]]
            span = array.span(self.first, self.last)
            work += [partial(chunk.feed, pieces, span) for chunk in parts]
            if not parts:
                work.append(partial(array.fill, out, pieces))
        return work


def write_state(
    directory: str,
    arrays: Sequence[ImportedArray],
    document: TrainDocument,
    source: Any,
    progress: Progress | None = None,
) -> Written:
    """Write everything but the manifest into ``directory``.

    Complete arrays of an earlier call are reused.

    Args:
        directory: Directory of the checkpoint.
        arrays: All arrays of the state.
        document: ``train.json``.
        source: Any JSON that identifies the state of the source; arrays of another one are written again.
        progress: Called after each array.

    Raises:
        CheckpointFullError: There is no room.
    """
    store = ChunkStore(directory)
    done = import_record.resume(directory, source)
    missing = [array for array in arrays if array.name not in done]
    needed = sum(array.size for array in missing)
    free = shutil.disk_usage(directory).free
    if needed + (1 << 20) > free:
        raise CheckpointFullError(
            f"{directory}: no room for the import: {needed} bytes needed, {free} free (hint: free some there)"
        )
    objects = [ObjectEntry(**entry) for name in done for entry in done[name]]
    held = {array.name: array.host_array() for array in arrays}
    total = sum(array.size for array in arrays)
    ready = total - needed
    unsynced: list[dict[str, Any]] = []
    waiting = 0

    def finished(family: _Family) -> None:
        nonlocal ready, waiting
        for array, parts, out in zip(family.arrays, family.chunks, family.small, strict=True):
            if parts:
                entries = [chunk.entry for chunk in parts]
                unsynced.append({"array": array.name, "objects": [dataclasses.asdict(entry) for entry in entries]})
                objects.extend(entries)
                waiting += array.size
            else:
                held[array.name] = array.host_array(out)
            ready += array.size
            if progress is not None:
                progress(array.name, ready, total)
        if waiting >= SYNC_BYTES:
            store.sync()
            import_record.note(directory, unsynced)
            unsynced.clear()
            waiting = 0

    try:
        _run(_families(store, missing), finished)
        described: list[HostArray] = [held[name] for name in sorted(held)]
        objects += write_rest(store, described, document)
        store.sync()
    finally:
        store.close()
    import_record.remove(directory)
    return written_of(describe_arrays(described), objects, document)


def _families(store: ChunkStore, arrays: Sequence[ImportedArray]) -> list[_Family]:
    """Group the arrays by source, those with the largest planes far from each other.

    While a large one is written, there is only room to read small ones.
    """
    grouped: dict[Any, list[ImportedArray]] = {}
    for array in sorted(arrays, key=lambda array: array.name):
        grouped.setdefault(array.name if array.source is None else array.source, []).append(array)
    families = []
    for group in grouped.values():
        parts = [chunk_writers(store, array) if array.grid else [] for array in group]
        small = [np.empty(() if array.grid else array.shape, numpy_dtype(array.dtype)) for array in group]
        families.append(_Family(group, parts, small))
    most = max((family.plane_size for family in families), default=0)
    large = [family for family in families if 2 * family.plane_size > most]
    rest = [family for family in families if 2 * family.plane_size <= most]
    rest.sort(key=lambda family: -family.plane_size * family.planes)
    dealt = ([array, *rest[number :: len(large)]] for number, array in enumerate(large))
    return list(itertools.chain.from_iterable(dealt))


def _steps(families: Sequence[_Family], room: int) -> deque[_Step]:
    """Divide families into steps of at most a third of ``room``, or of one plane."""
    steps = deque[_Step]()
    for family in families:
        count = max(1, room // 3 // max(1, family.plane_size))
        for first in range(0, family.planes, count):
            steps.append(_Step(family, first, min(first + count, family.planes)))
    return steps


def _run(families: Sequence[_Family], finished: Callable[[_Family], None]) -> None:
    """Read and write all families; call ``finished`` for each, in this thread.

    Raises the first error.
    """
    room = max(LEAST, int(_ROOM * max((family.plane_size for family in families), default=0)))
    steps = _steps(families, room)
    reading = deque[_Step]()
    events = queue.SimpleQueue[tuple[Callable[[], None], BaseException | None]]()
    held = writing = 0

    def start(pool: ThreadPoolExecutor, work: list[Callable[[], None]], then: Callable[[], None]) -> None:
        remaining = itertools.count(len(work) - 1, -1)  # next() is atomic

        def run_task(task: Callable[[], None]) -> None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                events.put((then, error))
            else:
                if next(remaining) == 0:
                    events.put((then, None))

        for task in work:
            pool.submit(run_task, task)

    def was_read(step: _Step) -> None:
        step.ready = True

    def was_written(step: _Step) -> None:
        nonlocal held, writing
        step.read.clear()
        held -= step.size
        writing -= 1
        step.family.writing = False
        if step.last == step.family.planes:
            finished(step.family)

    readers = ThreadPoolExecutor(READERS, thread_name_prefix="import-read")
    writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="import-write")
    try:
        while steps or reading or writing:
            while steps and (not held or held + steps[0].size <= room):
                step = steps.popleft()
                held += step.size
                reading.append(step)
                start(readers, step.readers(), partial(was_read, step))
            # A chunk needs its parts in order, so the steps of a family are written one after the other.
            while reading and reading[0].ready and not reading[0].family.writing:
                step = reading.popleft()
                step.family.writing = True
                writing += 1
                start(writers, step.writers(), partial(was_written, step))
            then, error = events.get()
            if error is not None:
                raise error
            then()
    finally:
        readers.shutdown(cancel_futures=True)
        writers.shutdown(cancel_futures=True)
