"""Order of examples: a stateless, constant-time map from a sample to an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from midstream_engine.data.permutation import Permutation

T = TypeVar("T")


class Shuffle:
    """The endless order of ``count`` examples, permuted again in each epoch.

    ``key`` None: in stored order.
    """

    def __init__(self, count: int, key: str | None) -> None:
        self.count = count
        self._permutation = None if key is None else _Permutations(count, f"midstream order 1\0{key}")

    def __call__(self, sample: np.ndarray) -> np.ndarray:
        """Return the example of each sample (from 0). int64 [n] -> int64 [n]."""
        epochs, inside = np.divmod(np.asarray(sample, np.int64), self.count)
        if self._permutation is None:
            return inside
        return _grouped(epochs, lambda epoch, chosen: self._permutation(epoch)(inside[chosen]))  # pyright: ignore[reportOptionalCall]


class Interleave:
    """Samples of several datasets, in fixed proportions in every block.

    A block has ``shares[i]`` of dataset i, in an order of its own.

    So after any number of complete blocks the proportions hold exactly, without any stored position. Each dataset's
    samples keep their order: one epoch of it ends before the next begins.
    """

    def __init__(self, shares: Sequence[int], key: str) -> None:
        self.shares = np.asarray(shares, np.int64)
        self.block = int(self.shares.sum())
        self._permutation = _Permutations(self.block, f"midstream mixture 1\0{key}")
        self._plans: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def __call__(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return each sample's dataset and number in it: int64 [n] -> two int64 [n]."""
        blocks, inside = np.divmod(np.asarray(sample, np.int64), self.block)
        dataset = _grouped(blocks, lambda block, chosen: self._plan(block)[0][inside[chosen]])
        rank = _grouped(blocks, lambda block, chosen: self._plan(block)[1][inside[chosen]])
        return dataset, blocks * self.shares[dataset] + rank

    def _plan(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each position's dataset and rank in that dataset, two int64 [block]."""
        plan = self._plans.get(block)
        if plan is None:
            slots = self._permutation(block)(np.arange(self.block))
            dataset = np.searchsorted(np.cumsum(self.shares), slots, "right")
            rank = np.empty(self.block, np.int64)
            rank[np.argsort(dataset, kind="stable")] = np.concatenate([np.arange(share) for share in self.shares])
            plan = dataset, rank
            self._plans = _latest_two(self._plans, block, plan)
        return plan


class _Permutations:
    """Numbered permutations of ``count`` elements."""

    def __init__(self, count: int, key: str) -> None:
        self._count, self._key = count, key
        self._permutations: dict[int, Permutation] = {}

    def __call__(self, number: int) -> Permutation:
        permutation = self._permutations.get(number)
        if permutation is None:
            permutation = Permutation(self._count, f"{self._key}\0{number}".encode())
            self._permutations = _latest_two(self._permutations, number, permutation)
        return permutation


def _latest_two(old: Mapping[int, T], number: int, value: T) -> dict[int, T]:
    """Return the last two entries in a new mapping.

    Two, because a batch is in one block or in two; new, because other threads read the old one.
    """
    return {**dict(list(old.items())[-1:]), number: value}


def _grouped(groups: np.ndarray, function: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Return the joined ``function(group, where)`` of groups; ``where`` is bool [n]."""
    result = np.empty(groups.shape, np.int64)
    for group in np.unique(groups):
        chosen = groups == group
        result[chosen] = function(int(group), chosen)
    return result
