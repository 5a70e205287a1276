"""Random numbers of jax in numpy, to reproduce data orders drawn with jax.

No device is needed.

Threefry-2x32 of 20 rounds (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), used as jax does it
with ``jax_threefry_partitionable``. A key is uint32 [2].
"""

from __future__ import annotations

import math

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def seeded(seed: int) -> np.ndarray:
    """Return ``jax.random.PRNGKey(seed)`` of a 32-bit number."""
    return np.array([0, seed & 0xFFFFFFFF], np.uint32)


def split(key: np.ndarray, count: int = 2) -> np.ndarray:
    """Return ``jax.random.split``. uint32 [count, 2]."""
    return np.stack(_threefry(key, *_counts(count)), -1)


def fold_in(key: np.ndarray, number: int) -> np.ndarray:
    """Return ``jax.random.fold_in``. uint32 [2]."""
    return np.concatenate(_threefry(key, np.zeros(1, np.uint32), np.array([number & 0xFFFFFFFF], np.uint32)))


def bits(key: np.ndarray, count: int) -> np.ndarray:
    """Return ``jax.random.bits`` of 32 bits each. uint32 [count]."""
    high, low = _threefry(key, *_counts(count))
    return high ^ low


def below_power(key: np.ndarray, exponent: int) -> int:
    """Return ``jax.random.randint(key, (), 0, 2**exponent)``, ``exponent`` < 32."""
    return int(bits(split(key)[1], 1)[0]) & ((1 << exponent) - 1)


def permutation(key: np.ndarray, count: int) -> np.ndarray:
    """Return ``jax.random.permutation(key, count)``, int64 [count].

    Elements are sorted by random keys, often enough that equal keys do not matter.
    """
    order = np.arange(count)
    for _ in range(math.ceil(3 * math.log(max(1, count)) / math.log(2**32 - 1))):
        key, drawn = split(key)
        order = order[np.argsort(bits(drawn, count), kind="stable")]
    return order


def _counts(count: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.arange(count, dtype=np.uint64)
    return (numbers >> np.uint64(32)).astype(np.uint32), numbers.astype(np.uint32)


def _threefry(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cipher of the counters (``high``, ``low``), uint32 of one shape."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):
        high, low = high + keys[0], low + keys[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                high = high + low
                low = (low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation))
                low = low ^ high
            high = high + keys[(group + 1) % 3]
            low = low + keys[(group + 2) % 3] + np.uint32(group + 1)
    return high, low
