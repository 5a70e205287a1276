"""Levanter's order: dataset and example of the n-th sample, from one key.

The key was drawn with jax.

Each dataset is shuffled by one permutation of all examples (``full``), of each stretch of it (``eras``), or of its
blocks and then of the examples of some blocks (``blocks``). Datasets are mixed in blocks that have each one's share
exactly, in an order of each block's own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from midstream_engine.data import threefry
from midstream_engine.data.errors import DataError

Order = Callable[[int], int]
_ROUNDS, _WALKS = 5, 1000
_CACHED = 4  # permutations of stretches in memory


def _generator(key: np.ndarray) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(threefry.below_power(key, 30)))


def feistel(length: int, key: np.ndarray) -> Order:
    """Return a Feistel network that permutes the numbers below ``length``.

    The network's domain is the next power of two; the network is applied until the value is below ``length``.
    """
    size = (length - 1).bit_length()
    right_bits = size - size // 2
    mask = (1 << right_bits) - 1
    keys = _generator(key).integers(0, 1 << right_bits, size=_ROUNDS, dtype=np.uint64).tolist()

    def order(place: int) -> int:
        for _ in range(_WALKS):
            high, right = place >> right_bits, place & mask
            for round_key in keys:
                high, right = right, high ^ ((right * 2654435761 + round_key) & mask)
            place = (high << right_bits) | right
            if place < length:
                return place
        raise DataError(f"Levanter's permutation of {length} examples does not end")

    return order if length > 1 else lambda place: place


def linear(length: int, key: np.ndarray) -> Order:
    """Return a * x + b modulo ``length``, in double precision as in Levanter.

    The result is no permutation of very long datasets.
    """
    if length == 1:
        return lambda place: place
    generator = _generator(key)
    factor = int(generator.integers(1, length))
    while math.gcd(factor, length) != 1:
        factor = int(generator.integers(1, length))
    offset = int(generator.integers(0, length))
    return lambda place: int((float(factor) * float(place) + float(offset)) % float(length))


PERMUTATIONS: dict[str, Callable[[int, np.ndarray], Order]] = {"feistel": feistel, "linear": linear}


def shuffled(length: int, how: Mapping[str, Any], key: np.ndarray) -> Order:
    """Return the order of one dataset of ``length`` examples.

    ``how``: ``kind`` and its parameters.
    """
    match how["kind"]:
        case "none":
            return lambda place: place
        case "full":
            return PERMUTATIONS[how["permutation"]](length, key)
        case "eras":
            return _eras(length, how["length"], PERMUTATIONS[how["permutation"]], key)
        case "blocks":
            return _blocks(length, how["io_block_size"], how["window_blocks"], PERMUTATIONS[how["permutation"]], key)
    raise DataError(f"Levanter's shuffle of kind {how['kind']!r} is not known")


def _eras(length: int, era: int, make: Callable[[int, np.ndarray], Order], key: np.ndarray) -> Order:
    @functools.lru_cache(_CACHED)
    def inside(number: int) -> Order:
        return make(min(era, length - number * era), threefry.fold_in(key, number))

    return lambda place: inside(place // era)(place % era) + place // era * era


def _blocks(length: int, block: int, window: int, make: Callable[[int, np.ndarray], Order], key: np.ndarray) -> Order:
    """Return an order that permutes full blocks, then the examples of each window.

    A window is ``window`` of the permuted blocks. Examples that fill no block come last.
    """
    block_key, full_key, tail_key = threefry.split(key, 3)
    blocks, tail = divmod(length, block)
    total = blocks + (tail > 0)
    placed = make(blocks, block_key) if blocks > 1 else (lambda place: place)

    @functools.lru_cache(_CACHED)
    def layout(number: int) -> tuple[list[int], Order]:
        """The full blocks of a window, and the permutation of their examples."""
        end = min((number + 1) * window, total)
        full = [placed(block) for block in range(number * window, min(end, blocks))]
        size = len(full) * block
        return full, make(size, threefry.fold_in(full_key, number)) if size > 1 else (lambda place: place)

    def order(place: int) -> int:
        number = min(place // (block * window), max(-(-total // window) - 1, 0))
        full, inside = layout(number)
        place -= number * block * window
        if place < len(full) * block:
            which, rest = divmod(inside(place), block)
            return full[which] * block + rest
        rest = place - len(full) * block
        if tail > 1:
            rest = make(tail, threefry.fold_in(tail_key, number))(rest)
        return blocks * block + rest

    return order


class LevanterMixture:
    """Datasets mixed in blocks of ``block`` samples.

    ``stages``: first sample, a multiple of ``block``, and weights by dataset from there on.
    """

    def __init__(
        self, names: Sequence[str], stages: Sequence[tuple[int, Mapping[str, float]]], block: int, key: np.ndarray
    ) -> None:
        self._block, self._key = block, key
        self._starts = [start for start, _ in stages]
        self._shares = [self._share(names, weights) for _, weights in stages]
        self._before = [np.zeros(len(names), np.int64)]  # samples of each dataset before each stage
        for number, (start, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            self._before.append(self._before[-1] + self._shares[number] * ((end - start) // block))
        self._plan = functools.lru_cache(_CACHED)(self._make_plan)

    def _share(self, names: Sequence[str], weights: Mapping[str, float]) -> np.ndarray:
        """Return each dataset's samples of a block, int64 [datasets].

        Numbers are rounded down; the dataset with the most samples gets the rest.
        """
        total = sum(weights.values())
        share = np.array([int(weights.get(name, 0.0) / total * self._block) for name in names], np.int64)
        share[np.argmax(share)] += self._block - share.sum()
        return share

    def _stage(self, block: int) -> int:
        return max(0, int(np.searchsorted(self._starts, block * self._block, side="right")) - 1)

    def _make_plan(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Return each position's dataset and rank in that dataset, two int64 [block]."""
        share = self._shares[self._stage(block)]
        datasets = np.repeat(np.arange(len(share)), share)
        ranks = np.concatenate([np.arange(count) for count in share])
        order = threefry.permutation(threefry.fold_in(self._key, block), self._block)
        return datasets[order], ranks[order]

    def __call__(self, sample: int) -> tuple[int, int]:
        """Return the dataset of a sample, and its number among that dataset's."""
        block, place = divmod(sample, self._block)
        stage = self._stage(block)
        datasets, ranks = self._plan(block)
        dataset = int(datasets[place])
        past = (block * self._block - self._starts[stage]) // self._block * int(self._shares[stage][dataset])
        return dataset, int(self._before[stage][dataset]) + past + int(ranks[place])


def sample_order(about: Mapping[str, Any], lengths: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    """Return the function from a sample (from 0) to its dataset and example.

    ``about``: the manifest's ``order``; ``lengths``: examples of each dataset.
    """
    key = np.array(about["key"], np.uint32)
    if about["mixture"] is None:
        alone = shuffled(lengths[0], about["shuffle"], key)
        return lambda sample: (0, alone(sample % lengths[0]))
    mix_key, shuffle_key = threefry.split(key)
    orders = []
    for length in lengths:
        shuffle_key, mine = threefry.split(shuffle_key)
        orders.append(shuffled(length, about["shuffle"], mine))
    mixture = about["mixture"]
    stages = [(start, weights) for start, weights in mixture["stages"]]
    mixed = LevanterMixture(mixture["names"], stages, mixture["block"], mix_key)

    def order(sample: int) -> tuple[int, int]:
        dataset, number = mixed(sample)
        return dataset, orders[dataset](number % lengths[dataset])

    return order
