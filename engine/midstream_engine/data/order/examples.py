"""Numbered examples of one body of text: stretches of the one long row, or packed documents."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from midstream_engine.data.cache.token_cache import TokenCache
from midstream_engine.data.order.packing import Packs


class Examples(Protocol):
    """``key`` names the content and how it is cut: what the shuffle depends on. ``sequences``: how many there are;
    ``count`` is that, too, where their order is ours, else where the order begins anew."""

    key: str
    count: int
    sequences: int

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens int32 [position] and loss mask uint8 [position] of example ``number``."""
        ...

    def bring(self, numbers: np.ndarray) -> None:
        """Make sure that these examples are at hand, before they are read one by one. Int64 [n]."""
        ...


def sequence_mask(seq_len: int) -> np.ndarray:
    """The loss mask of a full sequence: every position but the last, whose next token is in another sequence."""
    mask = np.ones(seq_len, np.uint8)
    mask[-1] = 0
    return mask


class Stretches:
    """Tokens [i * seq_len, (i + 1) * seq_len): documents run on from one example into the next."""

    def __init__(self, cache: TokenCache, seq_len: int):
        self.key = f"{cache.digest}\0{seq_len}"
        self.count = self.sequences = cache.tokens // seq_len
        self._cache, self._seq_len, self._mask = cache, seq_len, sequence_mask(seq_len)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        return self._cache.read(number * self._seq_len, self._seq_len), self._mask

    def bring(self, numbers: np.ndarray) -> None:
        self._cache.bring(numbers * self._seq_len, self._seq_len)


class Packed:
    """Whole documents. Each is predicted from itself alone: its last position, whose next token belongs to another
    document, does not count. What is left is filled with EOS that does not count.

    Every document but one that fills its example ends with EOS, so segments that end at EOS are the documents.
    """

    def __init__(self, cache: TokenCache, packs: Packs, seq_len: int):
        self.key = f"{cache.digest}\0{seq_len}\0packed"
        self.count = self.sequences = packs.examples
        self._cache, self._packs, self._seq_len = cache, packs, seq_len

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.full(self._seq_len, self._cache.eos, np.int32)
        mask = np.zeros(self._seq_len, np.uint8)
        filled = 0
        first, end = self._packs.rows[number : number + 2]
        for start, length in zip(self._packs.starts[first:end], self._packs.lengths[first:end], strict=True):
            tokens[filled : filled + length] = self._cache.read(int(start), int(length))
            mask[filled : filled + length - 1] = 1
            filled += int(length)
        return tokens, mask

    def bring(self, numbers: np.ndarray) -> None:
        if not self._cache.local:
            pieces = [np.arange(*self._packs.rows[number : number + 2]) for number in numbers]
            starts = self._packs.starts[np.concatenate(pieces)] if pieces else np.empty(0, np.int64)
            self._cache.bring(starts, self._seq_len)
