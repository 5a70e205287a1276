"""Division of parameters over processes as DeepSpeed has it.

Arithmetic alone, for any model.

ZeRO 1 and 2 (and the optimizer of bf16) put a group's parameters end to end and cut the row into equal parts. ZeRO 3
cuts each parameter into equal parts; a rank's parts of a subgroup are end to end. Standard library only; Python 3.8.
"""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Sequence, Tuple

ALIGNMENT = 2  # numbers by which each rank's part of a row is aligned
SUBGROUP_SIZE = 1_000_000_000  # numbers of a subgroup of ZeRO 3, where the configuration does not say


class Parameter(NamedTuple):
    """A parameter. ``size``: its count of numbers."""

    name: str
    size: int


class Piece(NamedTuple):
    """Numbers [first, first + length) of a parameter: where a rank has them.

    ``flat``: which of the rank's flat tensors; ``start``: the first number there.
    """

    rank: int
    flat: int
    start: int
    first: int
    length: int


class Division:
    """Where each rank has each parameter.

    ``sizes``: numbers of each flat tensor, the same on each rank, with padding. ``groups``: parameters of each flat
    tensor, in order. ``group_of``: the optimizer's group of each flat tensor.
    """

    def __init__(self, ranks: int, groups: Sequence[Sequence[Parameter]], group_of: Sequence[int]) -> None:
        self.ranks, self.groups, self.group_of = ranks, [list(group) for group in groups], list(group_of)
        self.sizes: List[int] = []
        self.ends: List[int] = []  # of each flat row of ZeRO 1 and 2: numbers without the padding at its end
        self._pieces: Dict[Tuple[int, str], List[Piece]] = {}

    def pieces(self, group: int, name: str) -> List[Piece]:
        """Return the pieces of a parameter of a group, in order of its numbers."""
        return self._pieces.get((group, name), [])

    def add(self, group: int, name: str, pieces: List[Piece]) -> None:
        """Record the pieces of a parameter."""
        self._pieces[group, name] = pieces

    def of_rank(self, rank: int, flat: int) -> List[Tuple[Parameter, Piece]]:
        """Return the pieces in a rank's flat tensor, in their order there."""
        group = self.group_of[flat]
        held = [
            (parameter, piece)
            for parameter in self.groups[flat]
            for piece in self.pieces(group, parameter.name)
            if piece.rank == rank and piece.flat == flat and piece.length
        ]
        return sorted(held, key=lambda pair: pair[1].start)

    def padding(self, rank: int, flat: int, at_last: bool) -> int:
        """Numbers of padding in a rank's part of a row.

        ``at_last``: the last rank counts all of it, as the optimizer of bf16 does.
        """
        size = self.sizes[flat]
        if at_last:
            return self.ranks * size - self.ends[flat] if rank == self.ranks - 1 else 0
        return min(size, max(0, (rank + 1) * size - self.ends[flat]))


def rows(groups: Sequence[Sequence[Parameter]], ranks: int, paddings: Sequence[Sequence[int]] = ()) -> Division:
    """Divide as ZeRO 1 and 2 do.

    ``paddings``: numbers of padding after each parameter of each group; none by default.
    """
    division = Division(ranks, groups, range(len(groups)))
    for flat, group in enumerate(groups):
        starts: List[int] = []
        position = 0
        for place, parameter in enumerate(group):
            starts.append(position)
            position += parameter.size + (paddings[flat][place] if paddings else 0)
        size = -(-position // (ALIGNMENT * ranks)) * ALIGNMENT
        division.sizes.append(size)
        division.ends.append(position)
        for parameter, start in zip(group, starts):
            division.add(flat, parameter.name, _cut(flat, start, parameter.size, size))
    return division


def _cut(flat: int, start: int, count: int, size: int) -> List[Piece]:
    pieces: List[Piece] = []
    first = 0
    while first < count:
        rank, place = divmod(start + first, size)
        length = min(count - first, size - place)
        pieces.append(Piece(rank, flat, place, first, length))
        first += length
    return pieces


def shards(groups: Sequence[Sequence[Parameter]], group_of: Sequence[int], ranks: int) -> Division:
    """Divide as ZeRO 3 does. ``groups``: the parameters of each subgroup."""
    division = Division(ranks, groups, group_of)
    for flat, group in enumerate(groups):
        place = 0
        for parameter in group:
            size = -(-parameter.size // ranks)
            division.add(group_of[flat], parameter.name, [
                Piece(rank, flat, place, rank * size, min(size, parameter.size - rank * size))
                for rank in range(ranks) if rank * size < parameter.size
            ])  # fmt: skip
            place += size
        division.sizes.append(place)
        division.ends.append(place)
    return division


def subgroups(group: Sequence[Parameter], ranks: int, size: int) -> List[List[Parameter]]:
    """Divide an optimizer's group into subgroups of about ``size`` numbers."""
    parts = [-(-parameter.size // ranks) for parameter in group]
    if size >= sum(parts):
        return [list(group)]
    result: List[List[Parameter]] = []
    current: List[Parameter] = []
    numbers = 0
    for place, parameter in enumerate(group):
        current.append(parameter)
        numbers += parts[place]
        if numbers >= size or place == len(group) - 1:
            result.append(current)
            current, numbers = [], 0
    return result


def round_robin(group: Sequence[Parameter], ranks: int) -> List[Parameter]:
    """Order a group as ``round_robin_gradients`` does."""
    return [parameter for rank in range(ranks) for parameter in group[rank::ranks]]


def undo_round_robin(group: Sequence[Parameter], ranks: int) -> List[Parameter]:
    """Return the order before `round_robin`."""
    places = [place for rank in range(ranks) for place in range(rank, len(group), ranks)]
    return [parameter for _, parameter in sorted(zip(places, group), key=lambda pair: pair[0])]
