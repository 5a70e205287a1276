"""Which example a run's n-th sample is: stateless, in time that does not depend on n."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from midstream_engine.data.permutation import Permutation


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
    """

    def __init__(self, shares: Sequence[int], key: str):
        self.shares = np.asarray(shares, np.int64)
        self.block = int(self.shares.sum())
        self._ends = np.cumsum(self.shares)
        self._permutation = _Permutations(self.block, f"midstream mixture 1\0{key}")

    def __call__(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each sample (from 0) its body and its number among that body's samples. int64 [n] -> two int64 [n]."""
        blocks, inside = np.divmod(np.asarray(sample, np.int64), self.block)
        slot = _grouped(blocks, lambda block, chosen: self._permutation(block)(inside[chosen]))
        body = np.searchsorted(self._ends, slot, "right")
        shares = self.shares[body]
        return body, blocks * shares + slot - (self._ends[body] - shares)


class _Permutations:
    """Permutation number e of ``count`` elements; the last two are kept: a batch lies in one, or around a border."""

    def __init__(self, count: int, key: str):
        self._count, self._key = count, key
        self._kept: dict[int, Permutation] = {}

    def __call__(self, number: int) -> Permutation:
        found = self._kept.get(number)
        if found is None:
            found = Permutation(self._count, f"{self._key}\0{number}".encode())
            # Replaced whole, for other threads' sake.
            self._kept = {**dict(list(self._kept.items())[-1:]), number: found}
        return found


def _grouped(groups: np.ndarray, function: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """``function(group, where)`` for each group, put together. ``where`` is bool [n]."""
    result = np.empty(groups.shape, np.int64)
    for group in np.unique(groups):
        chosen = groups == group
        result[chosen] = function(int(group), chosen)
    return result
