"""Which example a run's n-th sample is: stateless, in time that does not depend on n."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from midstream_engine.data.order.permutation import Permutation

T = TypeVar("T")


class Shuffle:
    """The endless order of ``count`` examples: all of them, then all of them anew. ``key`` None: as they lie."""

    def __init__(self, count: int, key: str | None):
        self.count = count
        self._permutation = None if key is None else _Permutations(count, f"midstream order 1\0{key}")

    def __call__(self, sample: np.ndarray) -> np.ndarray:
        """The example that is sample number ``sample`` (from 0). int64 [n] -> int64 [n]."""
        epochs, inside = np.divmod(np.asarray(sample, np.int64), self.count)
        if self._permutation is None:
            return inside
        return _grouped(epochs, lambda epoch, chosen: self._permutation(epoch)(inside[chosen]))  # pyright: ignore[reportOptionalCall]


class Interleave:
    """Samples of several bodies, ``shares[i]`` of body i in every block, which the samples of a block are in an order
    of their own. So after any number of whole blocks the proportions hold exactly, and no place has to be remembered.
    Each body's samples come in their order: one epoch of it ends before the next begins.
    """

    def __init__(self, shares: Sequence[int], key: str):
        self.shares = np.asarray(shares, np.int64)
        self.block = int(self.shares.sum())
        self._permutation = _Permutations(self.block, f"midstream mixture 1\0{key}")
        self._plans: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each sample (from 0) its body and its number among that body's samples. int64 [n] -> two int64 [n]."""
        blocks, inside = np.divmod(np.asarray(sample, np.int64), self.block)
        body = _grouped(blocks, lambda block, chosen: self._plan(block)[0][inside[chosen]])
        rank = _grouped(blocks, lambda block, chosen: self._plan(block)[1][inside[chosen]])
        return body, blocks * self.shares[body] + rank

    def _plan(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The body of each place in a block, and its rank among the places of that body. Two int64 [block]."""
        found = self._plans.get(block)
        if found is None:
            slots = self._permutation(block)(np.arange(self.block))
            body = np.searchsorted(np.cumsum(self.shares), slots, "right")
            rank = np.empty(self.block, np.int64)
            rank[np.argsort(body, kind="stable")] = np.concatenate([np.arange(share) for share in self.shares])
            found = body, rank
            self._plans = _kept(self._plans, block, found)
        return found


class _Permutations:
    """Permutation number e of ``count`` elements."""

    def __init__(self, count: int, key: str):
        self._count, self._key = count, key
        self._found: dict[int, Permutation] = {}

    def __call__(self, number: int) -> Permutation:
        found = self._found.get(number)
        if found is None:
            found = Permutation(self._count, f"{self._key}\0{number}".encode())
            self._found = _kept(self._found, number, found)
        return found


def _kept(old: Mapping[int, T], number: int, found: T) -> dict[int, T]:
    """The last two: a batch lies in one, or around a border. A new mapping each time, for other threads' sake."""
    return {**dict(list(old.items())[-1:]), number: found}


def _grouped(groups: np.ndarray, function: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """``function(group, where)`` for each group, put together. ``where`` is bool [n]."""
    result = np.empty(groups.shape, np.int64)
    for group in np.unique(groups):
        chosen = groups == group
        result[chosen] = function(int(group), chosen)
    return result
