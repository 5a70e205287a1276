"""An array to import: its name, and how to read its contents in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.checkpoint.boxes import Box, copy_rows, full_box, within
from midstream_engine.checkpoint.chunk_grid import grid_of
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.saving.snapshot import HostArray
from midstream_engine.interop.exact_numbers import checked

Piece = tuple[Box, np.ndarray]  # a part of an array, and its contents


def nothing(plane: int) -> None:
    """Read nothing: the contents are in memory."""
    del plane


@dataclass(frozen=True)
class ImportedArray:
    """An array to import, in ``planes`` equal parts along its first axis.

    The parts are the layers of a stack, or there is one part.

    ``read(plane)`` reads the source of a part, and raises ConversionError if it is inconsistent; ``pieces(plane,
    source)`` returns the part as disjoint pieces in the source's dtype, views if possible. Arrays with the same
    ``source`` (None: its own) have the same source data, which is read once for all. ``rounds``: numbers may be rounded
    to ``dtype``.
    """

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[int, Any], list[Piece]]
    read: Callable[[int], Any] = nothing
    planes: int = 1
    source: Any = None
    rounds: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis; () for a packed array."""
        return grid_of(self.axes, self.shape, self.dtype)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the rows [start, stop) of planes [first, last); a scalar has one plane."""
        rows = self.shape[0] // self.planes if self.shape else 1
        return first * rows, last * rows

    def parts(self, plane: int, source: object) -> list[Piece]:
        """Return the ``pieces`` in the array's dtype.

        Raises:
            ConversionError: A number is not finite, or would be rounded without ``rounds``.
        """
        dtype = numpy_dtype(self.dtype)
        return [(box, checked(self.name, data, dtype, rounds=self.rounds)) for box, data in self.pieces(plane, source)]

    def value(self) -> np.ndarray:
        """Return the complete array, in memory of its own.

        Raises ConversionError as ``parts`` does.
        """
        out = np.empty(self.shape, numpy_dtype(self.dtype))
        for plane in range(self.planes):
            self.fill(out, self.parts(plane, self.read(plane)))
        return out

    def fill(self, out: np.ndarray, pieces: list[Piece]) -> None:
        """Copy pieces to their positions in the complete array ``out``."""
        for box, data in pieces:
            copy_rows(out[(*within(box, full_box(self.shape)), ...)], data)

    def host_array(self, value: np.ndarray | None = None) -> HostArray:
        """Return the array for the checkpoint's writer; ``value`` None: without contents."""
        pieces = [] if value is None else [(full_box(self.shape), value)]
        return HostArray(self.name, self.axes, self.shape, self.dtype, pieces)
