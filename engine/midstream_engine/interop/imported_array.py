"""An array to be: what it is called, and how to get its contents a part at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.checkpoint.format.boxes import Box, copy_rows, whole, within
from midstream_engine.checkpoint.format.chunk_grid import grid_of
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.snapshot import HostArray

Piece = tuple[Box, np.ndarray]  # a part of an array, and its contents


def nothing(plane: int) -> None:
    """What is at hand already is not read."""
    del plane


@dataclass(frozen=True)
class Incoming:
    """An array to be, in ``planes`` equal parts along its first axis: the layers of a stack, or all of it as one.

    ``read(plane)`` brings what a part is made from into memory, and raises ConversionError where it contradicts
    itself; ``pieces(plane, what was read)`` gives the part as disjoint pieces, views where they can be. Arrays of one
    ``source`` (None: of its own) read the same: it is read once for them.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[int, Any], list[Piece]]
    read: Callable[[int], Any] = nothing
    planes: int = 1
    source: Any = None

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """How it is cut into objects of its own; () where it is packed with others."""
        return grid_of(self.axes, self.shape, self.dtype)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Of planes [first, last), the places along the first axis; a scalar has the one plane."""
        rows = self.shape[0] // self.planes if self.shape else 1
        return first * rows, last * rows

    def value(self) -> np.ndarray:
        """All of it, in memory of its own."""
        out = np.empty(self.shape, numpy_dtype(self.dtype))
        for plane in range(self.planes):
            self.fill(out, self.pieces(plane, self.read(plane)))
        return out

    def fill(self, out: np.ndarray, pieces: list[Piece]) -> None:
        """Put pieces where they belong in the whole array ``out``."""
        for box, data in pieces:
            copy_rows(out[(*within(box, whole(self.shape)), ...)], data)

    def held(self, value: np.ndarray | None = None) -> HostArray:
        """As the checkpoint's writer has it; without contents where it needs its description alone."""
        pieces = [] if value is None else [(whole(self.shape), value)]
        return HostArray(self.name, self.axes, self.shape, self.dtype, pieces)
