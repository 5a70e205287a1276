"""Parameters end to end, cut into equal parts for the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from midstream_engine.interop.torch_saving import OutgoingBlocks

ALIGNMENT = 2  # numbers by which each rank's part is aligned


@dataclass(frozen=True)
class TheirParameter:
    """A parameter in the other program's name and layout.

    ``read`` returns its masters or a moment, by the prefix of the array here.
    """

    name: str
    shape: tuple[int, ...]
    decays: bool
    read: Callable[[str], np.ndarray]

    @property
    def size(self) -> int:
        """Count of its numbers."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Row:
    """Parameters of a group of the optimizer, divided over ``ranks``."""

    parameters: Sequence[TheirParameter]
    ranks: int

    @property
    def size(self) -> int:
        """Count of its numbers, without padding."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def share(self) -> int:
        """Count of a rank's numbers, with padding."""
        return -(-self.size // (ALIGNMENT * self.ranks)) * ALIGNMENT

    def padding(self, rank: int) -> int:
        """Zeros at the end of a rank's part."""
        return min(self.share, max(0, (rank + 1) * self.share - self.size))

    def pieces(self, rank: int) -> Iterator[tuple[TheirParameter, int, int, int]]:
        """Yield the parameters of a rank's part.

        With each its place there, and which of its numbers, [first, stop).
        """
        begin, end, place = rank * self.share, (rank + 1) * self.share, 0
        for parameter in self.parameters:
            first, stop = max(begin - place, 0), min(end - place, parameter.size)
            if first < stop:
                yield parameter, place + first - begin, first, stop
            place += parameter.size

    def tensor(self, kind: str, rank: int, *, padded: bool) -> OutgoingBlocks:
        """Return a rank's part of masters or a moment, in float32."""
        padding = self.padding(rank)

        def blocks() -> Iterator[np.ndarray]:
            for parameter, _, first, stop in self.pieces(rank):
                yield np.ascontiguousarray(parameter.read(kind), np.float32).reshape(-1)[first:stop]
            if padded:
                yield np.zeros(padding, np.float32)

        return OutgoingBlocks(kind, "float32", (self.share - (0 if padded else padding),), blocks)
