"""Grid that divides an array into chunks, the same on every mesh.

The grid is a pure function of the array's axes, shape and dtype. Therefore the same state is the same bytes on every
mesh, and two checkpoints can be compared by their hashes.

The rules, in order:

1. An array below ``PACK_BELOW`` has no chunks: it is stored in ``small.safetensors``, and its grid is empty.
2. The *primary* axis is ``embed``, the one that FSDP shards; in an array without it, the longest axis that may be
   sharded (the first of equals). It is halved into up to ``PRIMARY_CHUNKS`` equal chunks while a chunk has at least
   ``MIN_CHUNK`` bytes.
3. The other axes that may be sharded are halved in turn, into up to ``OTHER_CHUNKS`` chunks each, while a chunk has at
   least ``COMFORTABLE`` bytes: tensor parallelism shards these, mostly within one host.
4. A chunk has all layers, or the largest equal part of them that stays within ``MAX_CHUNK`` bytes. If that would be
   less than ``MIN_CHUNK`` (61 layers have no halves), it has the smallest part that is not.

Axes are only halved, because most meshes are powers of two: a mesh axis of any power of two up to the number of chunks
owns and reads complete chunks. On other meshes chunks are assembled from shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from midstream_engine.checkpoint.boxes import Box
from midstream_engine.checkpoint.dtypes import numpy_dtype

MIB = 1 << 20
PACK_BELOW = 1 * MIB
MIN_CHUNK = 2 * MIB
COMFORTABLE = 16 * MIB
MAX_CHUNK = 64 * MIB
PRIMARY_CHUNKS = 64
OTHER_CHUNKS = 8

PRIMARY = "embed"
STACKED = frozenset({"layers", "layer", "blocks", "block"})
# Axes that no mesh shards: too short, or computed together.
UNSHARDED = STACKED | {"head_size", "position", "qkv", "key_data"}


def may_be_sharded(axis: str) -> bool:
    """Return whether a mesh axis may be mapped to ``axis`` of a parameter."""
    return axis not in UNSHARDED and not axis.startswith("key<")


def grid_of(axes: Sequence[str], shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """Return the number of chunks along each axis; ``()`` for a packed array.

    Raises:
        ValueError: ``axes`` and ``shape`` differ in length, or the format does not have the dtype.
    """
    if len(axes) != len(shape):
        raise ValueError(f"axes {list(axes)} and shape {list(shape)} differ in length")
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    if size < PACK_BELOW:
        return ()
    chunks = [1] * len(shape)
    sharded = [number for number, axis in enumerate(axes) if may_be_sharded(axis)]
    if sharded:
        primary = axes.index(PRIMARY) if PRIMARY in axes else max(sharded, key=lambda number: shape[number])
        _halve(chunks, [primary], shape, size, most=PRIMARY_CHUNKS, smallest=MIN_CHUNK)
        others = [number for number in sharded if number != primary]
        _halve(chunks, others, shape, size, most=OTHER_CHUNKS, smallest=COMFORTABLE)
    for number, axis in enumerate(axes):
        if axis in STACKED:
            chunks[number] = _layer_parts(shape[number], size // math.prod(chunks))
    return tuple(chunks)


def _layer_parts(layers: int, size: int) -> int:
    """Return the number of equal parts of the layers, of ``size`` bytes in all."""
    parts = [n for n in range(1, layers + 1) if layers % n == 0 and (n == 1 or size // n >= MIN_CHUNK)]
    return next((n for n in parts if size // n <= MAX_CHUNK), parts[-1])


def _halve(
    chunks: list[int], axes: Sequence[int], shape: Sequence[int], size: int, *, most: int, smallest: int
) -> None:
    """Halve the chunks along ``axes`` in turn, within the limits, to integer lengths."""
    progress = True
    while progress:
        progress = False
        for axis in axes:
            doubled = chunks[axis] * 2
            fits = doubled <= most and shape[axis] % doubled == 0
            if fits and size // math.prod(chunks) // 2 >= smallest:
                chunks[axis] = doubled
                progress = True


def chunk_shape(shape: Sequence[int], grid: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of every chunk; all are equal.

    Raises:
        ValueError: The grid does not divide the shape.
    """
    if len(shape) != len(grid) or any(parts < 1 or length % parts for length, parts in zip(shape, grid, strict=False)):
        raise ValueError(f"a grid of {list(grid)} chunks does not divide the shape {list(shape)}")
    return tuple(length // parts for length, parts in zip(shape, grid, strict=True))


def chunks_of(shape: Sequence[int], grid: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Yield every chunk's index in the grid and the part of the array it covers.

    The order is row-major.
    """
    lengths = chunk_shape(shape, grid)
    for index in product(*map(range, grid)):
        yield index, tuple((i * length, (i + 1) * length) for i, length in zip(index, lengths, strict=True))
