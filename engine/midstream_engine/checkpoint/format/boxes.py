"""Boxes: rectangular parts of an array, and how one part is put together from others.

Saving puts cells together from shards; restoring puts shards together from cells. Both are the same operation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

# One (start, stop) pair an axis.
Box = tuple[tuple[int, int], ...]

_TILE = 64  # elements on a side (twice as many on the other): what the first cache holds


def box_of(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """A tuple of slices (as a sharding gives it) as a box."""
    return tuple(part.indices(length)[:2] for part, length in zip(index, shape, strict=True))


def whole(shape: Sequence[int]) -> Box:
    return tuple((0, length) for length in shape)


def extent(box: Box) -> tuple[int, ...]:
    """The shape of the part."""
    return tuple(stop - start for start, stop in box)


def volume(box: Box) -> int:
    """Number of elements; 1 for a scalar."""
    return math.prod(extent(box))


def overlap(a: Box, b: Box) -> Box | None:
    """What two boxes share; None where that is nothing."""
    shared = tuple(
        (max(start, other_start), min(stop, other_stop))
        for (start, stop), (other_start, other_stop) in zip(a, b, strict=True)
    )
    return shared if all(start < stop for start, stop in shared) else None


def within(part: Box, outer: Box) -> tuple[slice, ...]:
    """The slices that pick ``part`` out of an array that holds ``outer``."""
    return tuple(slice(start - origin, stop - origin) for (start, stop), (origin, _) in zip(part, outer, strict=True))


def slabs(box: Box, most: int) -> Iterator[Box]:
    """``box`` in consecutive parts of at most ``most`` elements, each without gaps in row-major order."""
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


def gather(box: Box, pieces: Sequence[tuple[Box, np.ndarray]], out: np.ndarray | None = None) -> np.ndarray | None:
    """The contents of ``box`` from disjoint ``pieces``; a view where one piece holds all of it, else a copy. None where
    the pieces do not cover the box.

    ``out``: an array of the box's extent to copy to, where what would be returned is not contiguous.
    """
    shared = [(part, origin, data) for origin, data in pieces if (part := overlap(box, origin)) is not None]
    if len(shared) == 1 and shared[0][0] == box:
        _, origin, data = shared[0]
        view = data[within(box, origin)]
        if out is None or view.flags.c_contiguous:
            return view
        copy_rows(out, view)
        return out
    if sum(volume(part) for part, _, _ in shared) != volume(box):
        return None
    result = np.empty(extent(box), pieces[0][1].dtype) if out is None else out
    for part, origin, data in shared:
        copy_rows(result[(*within(part, box), ...)], data[within(part, origin)])
    return result


def copy_rows(target: np.ndarray, source: np.ndarray) -> None:
    """``target[...] = source`` for arrays of one shape and dtype. Rows (the last axis) without gaps are taken as one
    element each: numpy loops over short ones two to three times as fast. What lies transposed is copied in tiles."""
    if target.ndim > 1 and target.size and target.strides[-1] == source.strides[-1] == target.itemsize:
        row = np.dtype((np.void, target.shape[-1] * target.itemsize))
        target, source = target.view(row), source.view(row)
    elif source.size >= _TILE**2:
        lengths = zip(source.strides, source.shape, strict=True)
        near = min((abs(stride), axis) for axis, (stride, length) in enumerate(lengths) if length > 1)[1]
        if near != source.ndim - 1 and source.shape[-1] > 1:
            _copy_turned(target, source, near)
            return
    np.copyto(target, source)


def _copy_turned(target: np.ndarray, source: np.ndarray, near: int) -> None:
    """``target[...] = source``, whose neighbours in memory are those along the axis ``near`` and not along the last
    one. Tile by tile through the caches: read in the source's order, written in the target's."""
    others = [range(length) for axis, length in enumerate(source.shape[:-1]) if axis != near]
    source, target = (np.moveaxis(array, near, -2) for array in (source, target))
    for place in product(*others):
        plane, out = source[place], target[place]
        for i in range(0, plane.shape[0], _TILE):
            for j in range(0, plane.shape[1], 2 * _TILE):
                tile = slice(i, i + _TILE), slice(j, j + 2 * _TILE)
                out[tile] = plane[tile].copy("K")
