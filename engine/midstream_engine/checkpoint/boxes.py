"""Boxes: rectangular parts of an array, and assembling one part from others.

Saving assembles chunks from shards; restoring assembles shards from chunks. Both are the same operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, Protocol

import numpy as np

# One (start, stop) pair per axis.
Box = tuple[tuple[int, int], ...]

_NARROW = 128  # bytes of consecutive elements in memory: two lines of the cache
_STEP = 1 << 18  # bytes of those that are copied at a time, which fit the L2 cache
_TILE = 64  # elements along one side, twice as many along the other: two tiles fit the L1 cache


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """Return a tuple of slices, as a sharding has it, as a box."""
    return tuple(selected.indices(length)[:2] for selected, length in zip(index, shape, strict=True))


def full_box(shape: Sequence[int]) -> Box:
    """Return the box of a complete array."""
    return tuple((0, length) for length in shape)


def extent(box: Box) -> tuple[int, ...]:
    """Return the shape of the part."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """Return the number of elements; 1 for a scalar."""
    return math.prod(extent(box))


def overlap(a: Box, b: Box) -> Box | None:
    """Return the part that two boxes share, None if there is none."""
    shared: list[tuple[int, int]] = []
    for (start, stop), (other_start, other_stop) in zip(a, b, strict=True):
        first, last = max(start, other_start), min(stop, other_stop)
        if first >= last:
            return None
        shared.append((first, last))
    return tuple(shared)


def within(part: Box, outer: Box) -> tuple[slice, ...]:
    """Return the slices that select ``part`` from an array of ``outer``'s contents."""
    return tuple(slice(start - origin, stop - origin) for (start, stop), (origin, _) in zip(part, outer, strict=True))


def slabs(box: Box, most: int) -> Iterator[Box]:
    """Yield ``box`` in consecutive parts of at most ``most`` elements.

    Each part is without gaps in row-major order.
    """
    if volume(box) <= most or not box:
        if volume(box):
            yield box
        return
    (start, stop), rest = box[0], box[1:]
    row = volume(rest)
    step = most // row
    for first in range(start, stop, max(step, 1)):
        if step:
            yield ((first, min(first + step, stop)), *rest)
        else:
            for inner in slabs(rest, most):
                yield ((first, first + 1), *inner)


class Piece(Protocol):
    """Contents of a box: an array of numpy, or what gives one for an index."""

    @property
    def dtype(self) -> np.dtype: ...

    def __getitem__(self, index: Any, /) -> np.ndarray: ...


def gather(box: Box, pieces: Sequence[tuple[Box, Piece]], out: np.ndarray | None = None) -> np.ndarray | None:
    """Return the contents of ``box`` from disjoint ``pieces``; None if incomplete.

    The result is a view if one piece has all of it, else a copy. ``out``, an array of the box's extent, receives what
    would not be contiguous.
    """
    shared = [(shared_box, origin, data) for origin, data in pieces if (shared_box := overlap(box, origin)) is not None]
    if len(shared) == 1 and shared[0][0] == box:
        _, origin, data = shared[0]
        view = data[within(box, origin)]
        if out is None or view.flags.c_contiguous:
            return view
        copy_rows(out, view)
        return out
    if sum(volume(shared_box) for shared_box, _, _ in shared) != volume(box):
        return None
    result = np.empty(extent(box), pieces[0][1].dtype) if out is None else out
    for shared_box, origin, data in shared:
        copy_rows(result[(*within(shared_box, box), ...)], data[within(shared_box, origin)])
    return result


def copy_rows(target: np.ndarray, source: np.ndarray) -> None:
    """Assign ``target[...] = source`` for arrays of one shape and dtype.

    Rows (the last axis) without gaps are copied as one element each: numpy loops over short rows two to three times as
    fast. A transposed source is copied in tiles.
    """
    if target.ndim > 1 and target.size and target.strides[-1] == source.strides[-1] == target.itemsize:
        row = np.dtype((np.void, target.shape[-1] * target.itemsize))
        target, source = target.view(row), source.view(row)
    elif source.size >= _TILE**2:
        lengths = zip(source.strides, source.shape, strict=True)
        near = min((abs(stride), axis) for axis, (stride, length) in enumerate(lengths) if length > 1)[1]
        if near != source.ndim - 1 and source.shape[-1] > 1:
            _copy_transposed(target, source, near)
            return
    np.copyto(target, source)


def _copy_transposed(target: np.ndarray, source: np.ndarray, near: int) -> None:
    """Copy a source whose neighbours in memory are along ``near``, not the last axis.

    Each tile fits the cache: it is read in the source's order and written in the target's.
    """
    others = [range(length) for axis, length in enumerate(source.shape[:-1]) if axis != near]
    source, target = (np.moveaxis(array, near, -2) for array in (source, target))
    narrow = source.strides[-2] == source.itemsize and source.shape[-2] * source.itemsize <= _NARROW
    for index in product(*others):
        plane, out = source[index], target[index]
        if narrow:
            _copy_narrow(out, plane)
            continue
        for i in range(0, plane.shape[0], _TILE):
            for j in range(0, plane.shape[1], 2 * _TILE):
                tile = slice(i, i + _TILE), slice(j, j + 2 * _TILE)
                out[tile] = plane[tile].copy("K")


def _copy_narrow(target: np.ndarray, source: np.ndarray) -> None:
    """Copy a source [few, many] whose columns have no gaps, but gaps between them.

    Each column is read once, as one element: numpy would read its line of the cache for every row.
    """
    width, length = source.shape
    most = max(1, _STEP // (width * source.itemsize))
    columns = np.empty((min(most, length), width), source.dtype)
    for first in range(0, length, most):
        block = columns[: min(most, length - first)]
        copy_rows(block, source[:, first : first + most].T)
        np.copyto(target[:, first : first + most], block.T)
