"""The snapshot: a state's arrays in host memory. The only part of a save that the training loop has to wait for."""

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
from midstream_engine.checkpoint.format.boxes import Box, box_of, gather, volume, whole
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.host_buffers import Kept, Slices

AHEAD = 512 << 20  # bytes that are on their way from the devices while earlier ones are taken in
CHUNK = 8 << 20  # bytes that one thread copies at a time
COPIERS = min(8, os.cpu_count() or 1)

_copies = Kept()  # one save at a time: the memory of the last copy serves the next


@dataclasses.dataclass(frozen=True)
class HostArray:
    """One array in host memory, as the disjoint pieces that this process's devices held."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: list[tuple[Box, np.ndarray]]
    # Which parts each process holds, by process index; None where this process holds all of it.
    holders: dict[int, list[Box]] | None = None

    def part(self, box: Box, out: np.ndarray | None = None) -> np.ndarray:
        """The contents of ``box``; ``out`` as :func:`gather` has it. CheckpointError where the pieces do not hold all
        of it."""
        data = gather(box, self.pieces, out)
        if data is None:
            raise CheckpointError(f"{self.name}: the part {list(box)} of it is on none of this process's devices")
        return data


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of an array where it lies now. ``lasting``: its numpy array is a copy that nobody else writes to."""

    name: str
    box: Box
    data: Any
    size: int  # bytes
    lasting: bool


def snapshot(tree: Any, *, copy: bool = False) -> list[HostArray]:
    """Every array of ``tree`` in host memory, sorted by name; each part once, however often it is replicated.

    On the CPU backend the pieces are views of the device buffers; ``copy`` makes them independent, so that the state
    may change (or be donated) while they are written. From other devices they are copies in any case; ``AHEAD`` bounds
    how many bytes are under way at a time. Raises ValueError for a dtype that the format does not have.
    """
    logical = list(flatten(tree).values())
    parts = [part for array in logical for part in _parts(array, numpy_dtype(array.dtype))]
    held: dict[str, list[tuple[Box, np.ndarray]]] = {array.name: [] for array in logical}
    copied = [part for part in parts if copy and not part.lasting]
    slices = Slices(_copies.take(sum(Slices.room(part.size) for part in copied)))
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    for part, view in _fetch(parts):
        if copy and not part.lasting:
            target = slices.cut(view.shape, view.dtype)
            copies.append((target, view))
            view = target
        held[part.name].append((part.box, view))
    _copy(copies)
    return [
        HostArray(array.name, array.axes, array.shape, array.dtype, held[array.name], _holders(array))
        for array in logical
    ]


def _parts(array: LogicalArray, dtype: np.dtype) -> list[_Part]:
    if not isinstance(array.value, jax.Array):
        box = whole(array.shape)
        return [_Part(array.name, box, np.asarray(array.value), volume(box) * dtype.itemsize, False)]
    found = {}
    for shard in array.value.addressable_shards:
        box = box_of(shard.index, array.shape)
        if box not in found:
            lasting = shard.device.platform != "cpu" and shard.data.sharding.memory_kind in (None, "device")
            found[box] = _Part(array.name, box, shard.data, volume(box) * dtype.itemsize, lasting)
    return [found[box] for box in sorted(found)]


def _holders(array: LogicalArray) -> dict[int, list[Box]] | None:
    if not isinstance(array.value, jax.Array) or array.value.is_fully_addressable:
        return None
    holders: dict[int, set[Box]] = {}
    for device, index in array.value.sharding.devices_indices_map(array.shape).items():
        box = whole(array.shape) if index is None else box_of(index, array.shape)
        holders.setdefault(device.process_index, set()).add(box)
    return {process: sorted(boxes) for process, boxes in sorted(holders.items())}


def _fetch(parts: list[_Part]) -> Iterator[tuple[_Part, np.ndarray]]:
    """The parts as numpy arrays, in order; the transfers of the next ones run meanwhile."""
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
    """Fill each first array with the second, in threads, of which the caller is one."""
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
    """The same copy in parts of at most ``CHUNK`` bytes, where it has no gaps."""
    if not source.flags.c_contiguous or source.nbytes <= CHUNK:
        yield target, source
        return
    target, source = target.reshape(-1).view(np.uint8), source.reshape(-1).view(np.uint8)
    for start in range(0, source.nbytes, CHUNK):
        yield target[start : start + CHUNK], source[start : start + CHUNK]
