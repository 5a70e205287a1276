"""Batch k of a run, from the token cache: a function of (k, seed, digest, seq_len, batch size) and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from midstream_engine import records
from midstream_engine.data.cache import TokenCache
from midstream_engine.data.errors import DataError
from midstream_engine.data.permutation import Permutation


@dataclass(frozen=True)
class Batch:
    """``tokens`` int32 [batch, position]; ``loss_mask`` uint8 [batch, position]: 1 where the next token counts."""

    index: int
    tokens: np.ndarray
    loss_mask: np.ndarray
    digest: str

    @property
    def size(self) -> int:
        return self.tokens.shape[0]


def example_digest(tokens: np.ndarray, loss_mask: np.ndarray) -> bytes:
    """SHA-256 of one example: its tokens as little-endian int32, then its loss mask, a byte each."""
    return hashlib.sha256(tokens.astype("<i4").tobytes() + loss_mask.astype(np.uint8).tobytes()).digest()


def sequence_mask(seq_len: int) -> np.ndarray:
    """The loss mask of a full sequence: every position but the last, whose next token is in another sequence."""
    mask = np.ones(seq_len, np.uint8)
    mask[-1] = 0
    return mask


def make_batch(index: int, tokens: np.ndarray, loss_mask: np.ndarray) -> Batch:
    """A batch with its digest, over the examples in global order."""
    digests = [example_digest(*example) for example in zip(tokens, loss_mask, strict=True)]
    return Batch(index, tokens, loss_mask, records.batch_digest(digests))


class TrainingBatches:
    """The endless order of training: sequences of ``seq_len`` tokens, shuffled anew in every epoch."""

    def __init__(self, cache: TokenCache, *, seq_len: int, batch_size: int, seed: int, shuffle: bool = True):
        self.cache, self.seq_len, self.batch_size = cache, seq_len, batch_size
        self.sequences = cache.tokens // seq_len
        if not self.sequences:
            raise DataError(f"data: {cache.tokens} tokens do not fill one sequence of model.seq_len {seq_len}")
        self._seed, self._shuffle = seed, shuffle
        self._mask = sequence_mask(seq_len)
        self._permutations: dict[int, Permutation] = {}

    def sequence_index(self, sample: np.ndarray) -> np.ndarray:
        """Which sequence of the cache is the run's sample number ``sample`` (from 0). int64 [n] -> int64 [n]."""
        epochs, inside = np.divmod(np.asarray(sample, np.int64), self.sequences)
        if not self._shuffle:
            return inside
        result = np.empty_like(inside)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            result[chosen] = self._permutation(int(epoch))(inside[chosen])
        return result

    def _permutation(self, epoch: int) -> Permutation:
        found = self._permutations.get(epoch)
        if found is None:
            key = f"midstream order 1\0{self._seed}\0{self.cache.digest}\0{self.seq_len}\0{epoch}".encode()
            found = Permutation(self.sequences, key)
            # Bounded: a run looks at one epoch, or at two around its border. Replaced whole, for other threads' sake.
            self._permutations = {**dict(list(self._permutations.items())[-1:]), epoch: found}
        return found

    def batch(self, index: int) -> Batch:
        """Batch ``index``, in time that does not depend on ``index``."""
        return self.samples(index, index * self.batch_size, self.batch_size)

    def samples(self, index: int, first: int, count: int) -> Batch:
        """``count`` samples from number ``first`` on, as batch ``index``."""
        chosen = self.sequence_index(np.arange(first, first + count))
        tokens = np.stack([self.cache.read(int(sequence) * self.seq_len, self.seq_len) for sequence in chosen])
        return make_batch(index, tokens, np.tile(self._mask, (count, 1)))

    def epoch(self, index: int) -> float:
        """How many times the data has been read when batch ``index`` begins."""
        return index * self.batch_size / self.sequences


def evaluation_batches(cache: TokenCache, *, seq_len: int, batch_size: int, limit: int | None) -> Iterator[Batch]:
    """The validation set in order, at most ``limit`` batches; the last is filled up with masked sequences."""
    sequences = cache.tokens // seq_len
    count = -(-sequences // batch_size)
    for index in range(count if limit is None else min(count, limit)):
        tokens = np.zeros((batch_size, seq_len), np.int32)
        mask = np.zeros((batch_size, seq_len), np.uint8)
        for row in range(min(batch_size, sequences - index * batch_size)):
            tokens[row] = cache.read((index * batch_size + row) * seq_len, seq_len)
            mask[row] = sequence_mask(seq_len)
        yield make_batch(index, tokens, mask)
