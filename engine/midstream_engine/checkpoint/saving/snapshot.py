"""The snapshot: a state's arrays in host memory, or copies on its devices.

The latter are fetched when the save is written. The training loop waits for no other part of a save.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from midstream_core.attempt.errors import CheckpointError
from midstream_engine.array_types import Device, Index, Leaf, PyTree
from midstream_engine.checkpoint.array_names import LogicalArray, flatten
from midstream_engine.checkpoint.boxes import Box, box_of, full_box, gather, overlap, volume
from midstream_engine.checkpoint.chunk_grid import grid_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.host_buffers import AlignedSlices, ReusedMemory
from midstream_engine.checkpoint.saving.device_copy import (
    AHEAD,
    DevicePart,
    Transfers,
    copy_on_devices,
    first_line,
    prepare_copies,
)

log = logging.getLogger(__name__)
COPY_SIZE = 8 << 20  # bytes that one thread copies at a time
COPIERS = min(8, os.cpu_count() or 1)

_copies = ReusedMemory()  # one save at a time: the next copy reuses the memory of the last


class Copy(enum.Enum):
    """Where a snapshot copies what may change before it is read."""

    NONE = "none"  # nothing changes before
    HOST = "host"  # in the host's memory
    DEVICES = "devices"  # in the memory of the devices, and small arrays in the host's


@dataclasses.dataclass(frozen=True)
class HostArray:
    """One array in host memory, as the disjoint pieces of this process's devices.

    A piece that is still on its device is fetched when it is read, and read once.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: Sequence[tuple[Box, np.ndarray | DevicePart]]
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

    def expect(self, box: Box) -> None:
        """Note that ``box`` will be read, after what is expected already.

        Transfers from devices start in this order.
        """
        for origin, data in self.pieces:
            if isinstance(data, DevicePart) and overlap(box, origin) is not None:
                data.expect()

    def free(self) -> None:
        """Free the memory of pieces that are still on their devices."""
        for _, data in self.pieces:
            if isinstance(data, DevicePart):
                data.free()


@dataclasses.dataclass(frozen=True)
class _ArrayPart:
    """A part of an array on a device or host.

    ``lasting``: its numpy array is a copy that does not change. ``copied``: there is a copy of it on its device, if one
    is made.
    """

    name: str
    box: Box
    data: Any
    size: int  # bytes
    lasting: bool
    copied: bool


def snapshot(tree: PyTree, copy: Copy = Copy.NONE) -> list[HostArray]:
    """Return every array of ``tree``, sorted by name.

    Replicated parts are returned once.

    On the CPU backend the pieces are views of the device buffers; with a copy they are independent, so that the state
    may change or be donated while they are written. From other devices they are always copies: in the host's memory,
    where at most ``AHEAD`` bytes are in transfer at a time, or on the devices, from which they are fetched when they
    are read. If the devices cannot copy them, they are fetched at once, and the log says so.

    Args:
        tree: Pytree of arrays.
        copy: Where to copy.

    Raises:
        ValueError: An array has a dtype that the format does not have.
    """
    logical = list(flatten(tree).values())
    parts = _parts(logical, spread=copy is Copy.DEVICES)
    held: dict[str, list[tuple[Box, np.ndarray | DevicePart]]] = {array.name: [] for array in logical}
    on_device = _copy_on_devices([part for part in parts if part.copied]) if copy is Copy.DEVICES else []
    for part, piece in on_device:
        held[part.name].append((part.box, piece))
    if on_device:
        parts = [part for part in parts if not part.copied]
    copied = [part for part in parts if copy is not Copy.NONE and not part.lasting]
    slices = AlignedSlices(_copies.take(sum(AlignedSlices.room(part.size) for part in copied)))
    copies: list[tuple[np.ndarray, np.ndarray]] = []
    for part, view in _fetch(parts):
        if copy is not Copy.NONE and not part.lasting:
            target = slices.cut(view.shape, view.dtype)
            copies.append((target, view))
            view = target
        held[part.name].append((part.box, view))
    _copy(copies)
    return [
        HostArray(array.name, array.axes, array.shape, array.dtype, held[array.name], _parts_by_process(array))
        for array in logical
    ]


def copied_bytes(tree: PyTree) -> int:
    """Return the bytes on CPU devices that :func:`snapshot` copies with ``Copy.HOST``."""
    return sum(part.size for part in _parts(list(flatten(tree).values())) if not part.lasting)


def device_bytes(tree: PyTree) -> dict[PyTree, int]:
    """Return the bytes that ``Copy.DEVICES`` takes on each of this process's devices.

    The result is empty where the state is in host memory.
    """
    if jax.default_backend() == "cpu":
        return {}
    sizes: dict[Device, int] = {}
    for part in _parts(list(flatten(tree).values()), spread=True):
        if part.copied and part.lasting:
            (device,) = part.data.sharding.device_set
            sizes[device] = sizes.get(device, 0) + part.size
    return sizes


def prepare_device_copy(tree: PyTree) -> Callable[[], None]:
    """Return a function that compiles what ``Copy.DEVICES`` needs for ``tree``.

    Any thread may call the function. The tree may have been donated by then.
    """
    parts = _parts(list(flatten(tree).values()), spread=True)
    return prepare_copies([part.data for part in parts if part.copied])


def reusable_bytes() -> int:
    """Return the bytes of host memory that an earlier copy has left for the next one."""
    return _copies.free


def release(arrays: list[HostArray]) -> None:
    """Remove all arrays from the list, and free the memory of their copies on devices."""
    for array in arrays:
        array.free()
    arrays.clear()


def _parts(arrays: Sequence[LogicalArray], spread: bool = False) -> list[_ArrayPart]:
    """Return the parts of this process in the order of arrays and boxes, each once.

    With ``spread`` parts that several devices have are divided among them; else the first one's are returned.
    """
    load: dict[Device, int] = {}  # bytes by device
    collected: list[_ArrayPart] = []
    for array in arrays:
        dtype = numpy_dtype(array.dtype)
        if not isinstance(array.value, jax.Array):
            box = full_box(array.shape)
            data = np.asarray(array.value)
            collected.append(_ArrayPart(array.name, box, data, data.nbytes, lasting=False, copied=False))
            continue
        shards: dict[Box, list[Leaf]] = {}
        for shard in array.value.addressable_shards:
            shards.setdefault(box_of(shard.index, array.shape), []).append(shard)
        for box, same in sorted(shards.items(), key=lambda item: item[0]):
            size = volume(box) * dtype.itemsize
            shard = min(same, key=lambda shard: load.get(shard.device, 0)) if spread else same[0]
            load[shard.device] = load.get(shard.device, 0) + size
            own = shard.data.sharding.memory_kind in (None, "device")
            # Small arrays are packed into one object: they are read more than once, and fetched at once.
            large = bool(size and grid_of(array.axes, array.shape, array.dtype))
            collected.append(
                _ArrayPart(array.name, box, shard.data, size, own and shard.device.platform != "cpu", own and large)
            )
    return collected


def _copy_on_devices(parts: Sequence[_ArrayPart]) -> list[tuple[_ArrayPart, DevicePart]]:
    """Copy parts on their devices; return them with their copies, none if that fails."""
    try:
        copies = copy_on_devices([part.data for part in parts])
    except Exception as error:  # noqa: BLE001 (of any kind: the state is there and can be fetched)
        log.warning("no copy of the state on the devices, training waits until it is fetched: %s", first_line(error))
        return []
    transfers = Transfers()
    return [(part, DevicePart(copy, transfers)) for part, copy in zip(parts, copies, strict=True)]


def _parts_by_process(array: LogicalArray) -> dict[int, list[Box]] | None:
    if not isinstance(array.value, jax.Array) or array.value.is_fully_addressable:
        return None
    parts_by_process: dict[int, set[Box]] = {}
    sharding: Any = array.value.sharding
    indices: Mapping[Device, Index] = sharding.devices_indices_map(array.shape)
    for device, index in indices.items():
        box = box_of(index, array.shape)
        parts_by_process.setdefault(device.process_index, set()).add(box)
    return {process: sorted(boxes) for process, boxes in sorted(parts_by_process.items())}


def _fetch(parts: list[_ArrayPart]) -> Iterator[tuple[_ArrayPart, np.ndarray]]:
    """Yield the parts as numpy arrays, in order, while the next ones are in transfer."""
    waiting, started = deque(parts), deque[_ArrayPart]()
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
    """Copy each second array to the first, in threads, the calling one among them."""
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
