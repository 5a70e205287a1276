"""Numbered examples of one dataset: consecutive tokens, or packed documents."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from midstream_engine.data.packing import Packs
from midstream_engine.data.token_cache import TokenCache


class Examples(Protocol):
    """Numbered examples.

    ``key`` identifies content and division, on which the shuffle depends. ``sequences`` is the number of examples.
    ``count`` is the number after which the order repeats; of our own order it equals ``sequences``.
    """

    key: str
    count: int
    sequences: int

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens (int32 [position]) and loss mask (uint8 [position]) of an example."""
        ...

    def prefetch(self, numbers: np.ndarray) -> None:
        """Fetch these examples (int64 [n]) before they are read one by one."""
        ...


def sequence_mask(seq_len: int) -> np.ndarray:
    """Return the loss mask of a full sequence: all positions but the last.

    The last position's next token is in another sequence.
    """
    mask = np.ones(seq_len, np.uint8)
    mask[-1] = 0
    return mask


class Stretches:
    """Examples of consecutive tokens: documents continue in the next example.

    Example i is tokens [i * seq_len, (i + 1) * seq_len).
    """

    def __init__(self, cache: TokenCache, seq_len: int) -> None:
        self.key = f"{cache.digest}\0{seq_len}"
        self.count = self.sequences = cache.tokens // seq_len
        self._cache, self._seq_len, self._mask = cache, seq_len, sequence_mask(seq_len)

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and loss mask of an example."""
        return self._cache.read(number * self._seq_len, self._seq_len), self._mask

    def prefetch(self, numbers: np.ndarray) -> None:
        """Fetch these examples."""
        self._cache.prefetch(numbers * self._seq_len, self._seq_len)


class Packed:
    """Complete documents, each predicted from itself alone.

    The loss excludes the last position of a document, whose next token belongs to another one, and the EOS that pads
    the example. Every document but one that fills its example ends with EOS, so segments that end at EOS are the
    documents.
    """

    def __init__(self, cache: TokenCache, packs: Packs, seq_len: int) -> None:
        self.key = f"{cache.digest}\0{seq_len}\0packed"
        self.count = self.sequences = packs.examples
        self._cache, self._packs, self._seq_len = cache, packs, seq_len

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and loss mask of an example."""
        tokens = np.full(self._seq_len, self._cache.eos, np.int32)
        mask = np.zeros(self._seq_len, np.uint8)
        filled = 0
        first, end = self._packs.rows[number : number + 2]
        for start, length in zip(self._packs.starts[first:end], self._packs.lengths[first:end], strict=True):
            tokens[filled : filled + length] = self._cache.read(int(start), int(length))
            mask[filled : filled + length - 1] = 1
            filled += int(length)
        return tokens, mask

    def prefetch(self, numbers: np.ndarray) -> None:
        """Fetch these examples."""
        if not self._cache.local:
            pieces = [np.arange(*self._packs.rows[number : number + 2]) for number in numbers]
            starts = self._packs.starts[np.concatenate(pieces)] if pieces else np.empty(0, np.int64)
            self._cache.prefetch(starts, self._seq_len)
