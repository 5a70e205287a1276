"""How an array is cut into objects: a pure function of its axes, shape and dtype, never of the mesh.

Therefore the same state is the same bytes whatever mesh wrote it, and two checkpoints can be compared by their hashes.

The rules, in order:

1. An array below ``PACK_BELOW`` is not cut: it lies in ``small.safetensors`` (its grid is empty).
2. The *primary* axis is ``embed``, the one that FSDP shards; in an array without it, the longest axis that may be
   sharded (the first of equals). It is halved into up to ``PRIMARY_CELLS`` equal cells while an object keeps
   ``SMALLEST`` bytes.
3. The other axes that may be sharded are halved in turn, into up to ``OTHER_CELLS`` cells each, while an object keeps
   ``COMFORTABLE`` bytes: they are what tensor parallelism shards, mostly inside of one host.
4. Objects grow along the layers: an object holds all of them, or the largest equal part of them that stays within
   ``LARGEST`` bytes; where that would be less than ``SMALLEST`` (61 layers have no halves), the smallest part that is
   not.

Only halves are taken, because meshes are powers of two more often than not: a mesh axis of any power of two up to the
number of cells owns and reads whole objects. A mesh that straddles cells is served too, by putting cells together from
shards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

from midstream_engine.checkpoint.format.boxes import Box
from midstream_engine.checkpoint.format.dtypes import numpy_dtype

MIB = 1 << 20
PACK_BELOW = 1 * MIB
SMALLEST = 2 * MIB
COMFORTABLE = 16 * MIB
LARGEST = 64 * MIB
PRIMARY_CHUNKS = 64
OTHER_CHUNKS = 8

PRIMARY = "embed"
STACKED = frozenset({"layers", "layer", "blocks", "block"})
# Axes that no mesh shards: too short to be worth it, or cut in the middle of what is computed together.
WHOLE = STACKED | {"head_size", "position", "qkv", "key_data"}


def may_be_sharded(axis: str) -> bool:
    """Whether a mesh axis may be mapped to ``axis`` of a parameter."""
    return axis not in WHOLE and not axis.startswith("key<")


def grid_of(axes: Sequence[str], shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """Number of cells along each axis; ``()`` for an array that is packed."""
    if len(axes) != len(shape):
        raise ValueError(f"axes {list(axes)} and shape {list(shape)} differ in length")
    size = math.prod(shape) * numpy_dtype(dtype).itemsize
    if size < PACK_BELOW:
        return ()
    cells = [1] * len(shape)
    sharded = [number for number, axis in enumerate(axes) if may_be_sharded(axis)]
    if sharded:
        primary = axes.index(PRIMARY) if PRIMARY in axes else max(sharded, key=lambda number: shape[number])
        _halve(cells, [primary], shape, size, most=PRIMARY_CHUNKS, smallest=SMALLEST)
        others = [number for number in sharded if number != primary]
        _halve(cells, others, shape, size, most=OTHER_CHUNKS, smallest=COMFORTABLE)
    for number, axis in enumerate(axes):
        if axis in STACKED:
            cells[number] = _layer_parts(shape[number], size // math.prod(cells))
    return tuple(cells)


def _layer_parts(layers: int, size: int) -> int:
    """Into how many equal parts the layers are cut, where ``size`` bytes hold all of them."""
    parts = [n for n in range(1, layers + 1) if layers % n == 0 and (n == 1 or size // n >= SMALLEST)]
    return next((n for n in parts if size // n <= LARGEST), parts[-1])


def _halve(cells: list[int], axes: Sequence[int], shape: Sequence[int], size: int, *, most: int, smallest: int) -> None:
    """Halve the cells along ``axes`` in turn, as long as the limits and whole numbers allow."""
    progress = True
    while progress:
        progress = False
        for axis in axes:
            doubled = cells[axis] * 2
            fits = doubled <= most and shape[axis] % doubled == 0
            if fits and size // math.prod(cells) // 2 >= smallest:
                cells[axis] = doubled
                progress = True


def chunk_shape(shape: Sequence[int], grid: Sequence[int]) -> tuple[int, ...]:
    """The shape of every cell (they are all equal). ValueError where the grid does not divide the shape."""
    if len(shape) != len(grid) or any(parts < 1 or length % parts for length, parts in zip(shape, grid, strict=False)):
        raise ValueError(f"a grid of {list(grid)} cells does not divide the shape {list(shape)}")
    return tuple(length // parts for length, parts in zip(shape, grid, strict=True))


def chunks_of(shape: Sequence[int], grid: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Box]]:
    """Every cell's index in the grid and the part of the array that it covers, in row-major order."""
    lengths = chunk_shape(shape, grid)
    for index in product(*map(range, grid)):
        yield index, tuple((i * length, (i + 1) * length) for i, length in zip(index, lengths, strict=True))
