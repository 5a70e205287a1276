"""The snapshot: a state's arrays in host memory.

The training loop waits for no other part of a save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.checkpoint.format.array_names import LogicalArray, flatten
from midstream_engine.checkpoint.format.boxes import Box, box_of, full_box, gather, volume
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import AlignedSlices, ReusedMemory

AHEAD = 512 << 20  # bytes in transfer from devices while earlier ones are processed
COPY_SIZE = 8 << 20  # bytes that one thread copies at a time
COPIERS = min(8, os.cpu_count() or 1)

_copies = ReusedMemory()  # one save at a time: the next copy reuses the memory of the last


@dataclasses.dataclass(frozen=True)
class HostArray:
    """One array in host memory, as the disjoint pieces of this process's devices."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: list[tuple[Box, np.ndarray]]
    # The parts of each process, by process index; None if this process has the complete array.
    parts_by_process: dict[int, list[Box]] | None = None

    def part(self, box: Box, out: np.ndarray | None = None) -> np.ndarray:
        """Return the contents of ``box``; ``out`` is that of :func:`gather`.

        Raises:
            CheckpointError: The pieces do not cover the box.
        """
        data = gather(box, self.pieces, out)
        if data is None:
            raise CheckpointError(f"{self.name}: no device of this process has the part {list(box)}")
        return data


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of an array on a device or host.

    ``lasting``: its numpy array is a copy that does not change.
    """

    name: str
    box: Box
    data: Any
    size: int  # bytes
    lasting: bool


def snapshot(tree: Any, *, copy: bool = False) -> list[HostArray]:
    """Return every array of ``tree`` in host memory, sorted by name.

    Replicated parts are returned once.

    On the CPU backend the pieces are views of the device buffers; with ``copy`` they are independent, so that the state
    may change or be donated while they are written. From other devices they are always copies; at most ``AHEAD`` bytes
    are in transfer at a time.

    Raises:
        ValueError: An array has a dtype that the format does not have.
    """
    logical = list(flatten(tree).values())
    parts = [part for array in logical for part in _parts(array, numpy_dtype(array.dtype))]
    held: dict[str, list[tuple[Box, np.ndarray]]] = {array.name: [] for array in logical}
    copied = [part for part in parts if copy and not part.lasting]
    slices = AlignedSlices(_copies.take(sum(AlignedSlices.room(part.size) for part in copied)))
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    for part, view in _fetch(parts):
        if copy and not part.lasting:
            target = slices.cut(view.shape, view.dtype)
            copies.append((target, view))
            view = target
        held[part.name].append((part.box, view))
    _copy(copies)
    return [
        HostArray(array.name, array.axes, array.shape, array.dtype, held[array.name], _parts_by_process(array))
        for array in logical
    ]


def copied_bytes(tree: Any) -> int:
    """Return the bytes that :func:`snapshot` copies in host memory with ``copy``.

    They are those of arrays on CPU devices.
    """
    parts = (part for array in flatten(tree).values() for part in _parts(array, numpy_dtype(array.dtype)))
    return sum(part.size for part in parts if not part.lasting)


def reusable_bytes() -> int:
    """Return the bytes of host memory that an earlier copy has left for the next one."""
    return _copies.free


def _parts(array: LogicalArray, dtype: np.dtype) -> list[_Part]:
    if not isinstance(array.value, jax.Array):
        box = full_box(array.shape)
        return [_Part(array.name, box, np.asarray(array.value), volume(box) * dtype.itemsize, False)]
    found = {}
    for shard in array.value.addressable_shards:
        box = box_of(shard.index, array.shape)
        if box not in found:
            lasting = shard.device.platform != "cpu" and shard.data.sharding.memory_kind in (None, "device")
            found[box] = _Part(array.name, box, shard.data, volume(box) * dtype.itemsize, lasting)
    return [found[box] for box in sorted(found)]


def _parts_by_process(array: LogicalArray) -> dict[int, list[Box]] | None:
    if not isinstance(array.value, jax.Array) or array.value.is_fully_addressable:
        return None
    parts_by_process: dict[int, set[Box]] = {}
    for device, index in array.value.sharding.devices_indices_map(array.shape).items():
        box = full_box(array.shape) if index is None else box_of(index, array.shape)
        parts_by_process.setdefault(device.process_index, set()).add(box)
    return {process: sorted(boxes) for process, boxes in sorted(parts_by_process.items())}


def _fetch(parts: list[_Part]) -> Iterator[tuple[_Part, np.ndarray]]:
    """Yield the parts as numpy arrays, in order, while the next ones are in transfer."""
    waiting, started = deque(parts), deque[_Part]()
    ahead = 0
    while waiting or started:
        while waiting and (not started or ahead + waiting[0].size <= AHEAD):
            part = waiting.popleft()
            if isinstance(part.data, jax.Array):
                part.data.copy_to_host_async()
            ahead += part.size
            started.append(part)
        part = started.popleft()
        ahead -= part.size
        yield part, np.asarray(part.data)


def _copy(copies: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Copy each second array to the first, in threads.

    The calling thread is one of them.
    """
    pieces = deque(piece for target, source in copies for piece in _pieces(target, source))

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                np.copyto(*pieces.popleft())

    helpers = min(COPIERS, len(pieces)) - 1
    if helpers < 1:
        return work()
    with ThreadPoolExecutor(helpers, thread_name_prefix="snapshot") as pool:
        helping = [pool.submit(work) for _ in range(helpers)]
        work()
        for future in helping:
            future.result()


def _pieces(target: np.ndarray, source: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the copy in parts of at most ``COPY_SIZE`` bytes.

    Only a contiguous source is divided.
    """
    if not source.flags.c_contiguous or source.nbytes <= COPY_SIZE:
        yield target, source
        return
    target, source = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    for start in range(0, source.nbytes, COPY_SIZE):
        yield target[start : start + COPY_SIZE], source[start : start + COPY_SIZE]
