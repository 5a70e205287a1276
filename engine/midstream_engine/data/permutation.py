"""A stateless shuffle: a keyed permutation of [0, n) that maps one index in O(1).

A balanced Feistel network over the smallest even number of bits that represents n, applied until the value is below n
(cycle walking: Black & Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). At most 4 rounds of it are expected.
"""

from __future__ import annotations

import hashlib

import numpy as np

ROUNDS = 6


class Permutation:
    """The permutation of [0, n) of ``key``, the same on every machine."""

    def __init__(self, n: int, key: bytes) -> None:
        if n < 1:
            raise ValueError(f"a permutation needs at least one element, not {n}")
        self.n = n
        self._half = np.uint64(max(1, -(-(n - 1).bit_length() // 2)))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.frombuffer(hashlib.shake_256(key).digest(8 * ROUNDS), "<u8").astype(np.uint64)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Return the image, int64, of each ``index`` (integers in [0, n), any shape)."""
        values = np.asarray(index, np.uint64)
        if values.size and int(values.max()) >= self.n:
            raise IndexError(f"index {int(values.max())} of a permutation of {self.n}")
        result = self._network(values)
        outside = result >= self.n
        while outside.any():
            result[outside] = self._network(result[outside])
            outside = result >= self.n
        return result.astype(np.int64)

    def _network(self, values: np.ndarray) -> np.ndarray:
        high, right = values >> self._half, values & self._mask
        for key in self._keys:
            high, right = right, high ^ (_mix(right, key) & self._mask)
        return np.atleast_1d((high << self._half) | right)


def _mix(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return SplitMix64's finalizer of ``values`` + ``key``, modulo 2^64.

    See Steele, Lea & Flood 2014.
    """
    with np.errstate(over="ignore"):
        values = values * np.uint64(0x9E3779B97F4A7C15) + key
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
