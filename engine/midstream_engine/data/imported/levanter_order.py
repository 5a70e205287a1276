"""Levanter's order of samples: which example of which body of text its n-th sample is.

Each body is shuffled by one permutation of all of it (``full``), of each stretch of it (``eras``), or of its blocks and
then of the examples of some blocks (``blocks``). Bodies are mixed in blocks that hold each one's share exactly, in an
order of their own. All of it follows from one key, drawn with jax; nothing has to be remembered.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from midstream_engine.data.errors import DataError
from midstream_engine.data.order import threefry

Order = Callable[[int], int]
_ROUNDS, _WALKS = 5, 1000
_KEPT = 4  # permutations of stretches that are kept


def _generator(key: np.ndarray) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(threefry.below_power(key, 30)))


def feistel(length: int, key: np.ndarray) -> Order:
    """A Feistel network over the power of two that holds ``length``, walked until the value falls below it."""
    size = (length - 1).bit_length()
    right_bits = size - size // 2
    mask = (1 << right_bits) - 1
    keys = _generator(key).integers(0, 1 << right_bits, size=_ROUNDS, dtype=np.uint64).tolist()

    def order(place: int) -> int:
        for _ in range(_WALKS):
            left, right = place >> right_bits, place & mask
            for one in keys:
                left, right = right, left ^ ((right * 2654435761 + one) & mask)
            place = (left << right_bits) | right
            if place < length:
                return place
        raise DataError(f"Levanter's permutation of {length} examples does not end")

    return order if length > 1 else lambda place: place


def linear(length: int, key: np.ndarray) -> Order:
    """a * x + b modulo ``length``, in double precision as there: of many examples it is no permutation any more."""
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
    """The order of one body of ``length`` examples. ``how``: ``kind`` and what that needs."""
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
    @functools.lru_cache(_KEPT)
    def inside(number: int) -> Order:
        return make(min(era, length - number * era), threefry.fold_in(key, number))

    return lambda place: inside(place // era)(place % era) + place // era * era


def _blocks(length: int, block: int, window: int, make: Callable[[int, np.ndarray], Order], key: np.ndarray) -> Order:
    """Whole blocks permuted, then the examples of each ``window`` of them; what fills no block comes last."""
    block_key, full_key, tail_key = threefry.split(key, 3)
    blocks, tail = divmod(length, block)
    total = blocks + (tail > 0)
    placed = make(blocks, block_key) if blocks > 1 else (lambda place: place)

    @functools.lru_cache(_KEPT)
    def layout(number: int) -> tuple[list[int], Order]:
        """The whole blocks of a window, and the permutation of their examples."""
        end = min((number + 1) * window, total)
        whole = [placed(one) for one in range(number * window, min(end, blocks))]
        size = len(whole) * block
        return whole, make(size, threefry.fold_in(full_key, number)) if size > 1 else (lambda place: place)

    def order(place: int) -> int:
        number = min(place // (block * window), max(-(-total // window) - 1, 0))
        whole, inside = layout(number)
        place -= number * block * window
        if place < len(whole) * block:
            which, rest = divmod(inside(place), block)
            return whole[which] * block + rest
        rest = place - len(whole) * block
        if tail > 1:
            rest = make(tail, threefry.fold_in(tail_key, number))(rest)
        return blocks * block + rest

    return order


class Mixture:
    """Bodies in the shares that hold from a sample on (``stages``: first sample, weight by body, at each a whole number
    of blocks), in blocks of ``block`` samples."""

    def __init__(
        self, names: Sequence[str], stages: Sequence[tuple[int, Mapping[str, float]]], block: int, key: np.ndarray
    ):
        self._block, self._key = block, key
        self._starts = [start for start, _ in stages]
        self._shares = [self._share(names, weights) for _, weights in stages]
        self._before = [np.zeros(len(names), np.int64)]  # samples of each body before each stage
        for number, (start, end) in enumerate(zip(self._starts, self._starts[1:], strict=False)):
            self._before.append(self._before[-1] + self._shares[number] * ((end - start) // block))
        self._plan = functools.lru_cache(_KEPT)(self._make_plan)

    def _share(self, names: Sequence[str], weights: Mapping[str, float]) -> np.ndarray:
        """How many of a block's samples each body gives: rounded down, the rest to the largest. int64 [bodies]."""
        total = sum(weights.values())
        share = np.array([int(weights.get(name, 0.0) / total * self._block) for name in names], np.int64)
        share[np.argmax(share)] += self._block - share.sum()
        return share

    def _stage(self, block: int) -> int:
        return max(0, int(np.searchsorted(self._starts, block * self._block, side="right")) - 1)

    def _make_plan(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The body of each place in a block, and its rank among that body's. Two int64 [block]."""
        share = self._shares[self._stage(block)]
        bodies = np.repeat(np.arange(len(share)), share)
        ranks = np.concatenate([np.arange(one) for one in share])
        order = threefry.permutation(threefry.fold_in(self._key, block), self._block)
        return bodies[order], ranks[order]

    def __call__(self, sample: int) -> tuple[int, int]:
        """The body of a sample, and its number among that body's."""
        block, place = divmod(sample, self._block)
        stage = self._stage(block)
        bodies, ranks = self._plan(block)
        body = int(bodies[place])
        past = (block * self._block - self._starts[stage]) // self._block * int(self._shares[stage][body])
        return body, int(self._before[stage][body]) + past + int(ranks[place])


def sample_order(about: Mapping[str, Any], lengths: Sequence[int]) -> Callable[[int], tuple[int, int]]:
    """Of a sample (from 0) its body and its example there. ``about``: the manifest's ``order``; ``lengths``: examples
    of each body."""
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
    mixed = Mixture(mixture["names"], stages, mixture["block"], mix_key)

    def order(sample: int) -> tuple[int, int]:
        body, number = mixed(sample)
        return body, orders[body](number % lengths[body])

    return order
