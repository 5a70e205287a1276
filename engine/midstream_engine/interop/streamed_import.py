"""Writes an imported state while its source is read, with a record of what is done, so that a killed import goes on.

The state is cut into steps: some layers of the arrays that come from the same bytes. Threads read steps ahead (their
CRCs are computed and their checks done on the way), others cut what was read into objects, hash and write them. What is
in memory is the steps under way: less than one and a half of the largest array, and of a stack of many layers less than
two of them.
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

from midstream_engine.checkpoint.errors import CheckpointFull
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.save import Written, describe_arrays, write_rest, written_of
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.interop import import_record
from midstream_engine.interop.chunk_writer import Chunk, ChunkStore, chunks
from midstream_engine.interop.imported_array import Incoming
from midstream_engine.records import ObjectEntry

SYNC_BYTES = 1 << 30  # written between two waits for the disk: what a killed import does again, at most
READERS, WRITERS = 2, 4  # threads: reading is a checksum beside the disk's work, writing two
LEAST = 64 << 20  # bytes that may be in memory, however small the arrays are
_ROOM = 1.2  # bytes that may be in memory, of the largest step's: the next ones are read while it is written
Progress = Callable[[str, int, int], None]  # name of the array, bytes done, bytes of all


@dataclass
class _Family:
    """Arrays that come from the same bytes, and where they go: to cells, or, where they are small, to memory."""

    arrays: list[Incoming]
    cells: list[list[Chunk]]
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
    """Planes [first, last) of a family. ``read``: of each plane what its arrays are made from, while it is needed."""

    family: _Family
    first: int
    last: int
    read: dict[int, Any] = field(default_factory=dict)
    ready: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return self.family.plane_size * (self.last - self.first)

    def readers(self) -> list[Callable[[], None]]:
        return [partial(self._read, plane) for plane in range(self.first, self.last)]

    def _read(self, plane: int) -> None:
        self.read[plane] = self.family.arrays[0].read(plane)

    def writers(self) -> list[Callable[[], None]]:
        """What is to be done with it, in any order."""
        work: list[Callable[[], None]] = []
        for array, parts, out in zip(self.family.arrays, self.family.cells, self.family.small, strict=True):
            pieces = [piece for plane, read in sorted(self.read.items()) for piece in array.pieces(plane, read)]
            span = array.span(self.first, self.last)
            work += [partial(cell.feed, pieces, span) for cell in parts]
            if not parts:
                work.append(partial(array.fill, out, pieces))
        return work


def write_state(
    directory: str,
    arrays: Sequence[Incoming],
    document: dict[str, Any],
    source: Any,
    progress: Progress | None = None,
) -> Written:
    """Write all but the manifest into ``directory``; what an earlier try finished is kept where it was of the same
    ``source`` (any JSON that names it as it is). Raises CheckpointFull where there is no room."""
    store = ChunkStore(directory)
    done = import_record.resume(directory, source)
    missing = [array for array in arrays if array.name not in done]
    needed = sum(array.size for array in missing)
    free = shutil.disk_usage(directory).free
    if needed + (1 << 20) > free:
        raise CheckpointFull(
            f"{directory}: no room for the import: {needed} bytes needed, {free} free; free some there"
        )
    objects = [ObjectEntry(**entry) for name in done for entry in done[name]]
    held = {array.name: array.held() for array in arrays}
    total = sum(array.size for array in arrays)
    ready = total - needed
    unsynced: list[dict[str, Any]] = []
    waiting = 0

    def finished(family: _Family) -> None:
        nonlocal ready, waiting
        for array, parts, out in zip(family.arrays, family.cells, family.small, strict=True):
            if parts:
                entries = [cell.entry for cell in parts]
                unsynced.append({"array": array.name, "objects": [dataclasses.asdict(entry) for entry in entries]})
                objects.extend(entries)
                waiting += array.size
            else:
                held[array.name] = array.held(out)
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


def _families(store: ChunkStore, arrays: Sequence[Incoming]) -> list[_Family]:
    """The arrays by what they come from, those with the largest planes far from each other: while one is written,
    there is room to read small ones alone."""
    grouped: dict[Any, list[Incoming]] = {}
    for array in sorted(arrays, key=lambda array: array.name):
        grouped.setdefault(array.name if array.source is None else array.source, []).append(array)
    families = []
    for group in grouped.values():
        parts = [chunks(store, array) if array.grid else [] for array in group]
        small = [np.empty(() if array.grid else array.shape, numpy_dtype(array.dtype)) for array in group]
        families.append(_Family(group, parts, small))
    most = max((family.plane_size for family in families), default=0)
    large = [family for family in families if 2 * family.plane_size > most]
    rest = [family for family in families if 2 * family.plane_size <= most]
    rest.sort(key=lambda family: -family.plane_size * family.planes)
    dealt = ([one, *rest[number :: len(large)]] for number, one in enumerate(large))
    return list(itertools.chain.from_iterable(dealt))


def _steps(families: Sequence[_Family], room: int) -> deque[_Step]:
    """Of at most a third of ``room``, or of one plane."""
    steps = deque[_Step]()
    for family in families:
        count = max(1, room // 3 // max(1, family.plane_size))
        for first in range(0, family.planes, count):
            steps.append(_Step(family, first, min(first + count, family.planes)))
    return steps


def _run(families: Sequence[_Family], finished: Callable[[_Family], None]) -> None:
    """Read and write all families; ``finished`` is called for each, in this thread. The first error is raised."""
    room = max(LEAST, int(_ROOM * max((family.plane_size for family in families), default=0)))
    steps = _steps(families, room)
    reading = deque[_Step]()
    events = queue.SimpleQueue[tuple[Callable[[], None], BaseException | None]]()
    held = writing = 0

    def start(pool: ThreadPoolExecutor, work: list[Callable[[], None]], then: Callable[[], None]) -> None:
        left = itertools.count(len(work) - 1, -1)  # a step of it is atomic

        def one(task: Callable[[], None]) -> None:
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
                events.put((then, error))
            else:
                if next(left) == 0:
                    events.put((then, None))

        for task in work:
            pool.submit(one, task)

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
            # A cell takes its parts in order, so the steps of a family are written one after the other.
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
