"""Batch k of a run, from its data: a function of (k, seed, digest, seq_len, batch size) and nothing else.
And the validation sets, in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from midstream_engine import records
from midstream_engine.data.cache.token_cache import TokenCache
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported.imported_data import Imported
from midstream_engine.data.order.example_order import Interleave, Shuffle
from midstream_engine.data.order.examples import Stretches
from midstream_engine.data.order.mixture import Mixture, bodies_of


@dataclass(frozen=True)
class Batch:
    """``tokens`` int32 [batch, position]; ``loss_mask`` uint8 [batch, position]: 1 where the next token counts.
    ``digests``: by row, of the examples that were read; the rows of others are zeros. ``source``: of a validation batch
    the name of its set."""

    index: int
    tokens: np.ndarray
    loss_mask: np.ndarray
    digests: Mapping[int, bytes]
    source: str = ""

    @property
    def size(self) -> int:
        return self.tokens.shape[0]

    @property
    def digest(self) -> str:
        """Of a batch that was read whole: over the digests of its examples, in global order."""
        return records.batch_digest(self.digests[row] for row in range(self.size))


def example_digest(tokens: np.ndarray, loss_mask: np.ndarray) -> bytes:
    """SHA-256 of one example: its tokens as little-endian int32, then its loss mask, a byte each."""
    digest = hashlib.sha256(np.ascontiguousarray(tokens, "<i4").data)
    digest.update(np.ascontiguousarray(loss_mask, np.uint8).data)
    return digest.digest()


def make_batch(index: int, tokens: np.ndarray, loss_mask: np.ndarray, rows: Iterable[int] | None = None) -> Batch:
    """A batch with the digests of ``rows``; None: of all."""
    rows = range(len(tokens)) if rows is None else rows
    return Batch(index, tokens, loss_mask, {row: example_digest(tokens[row], loss_mask[row]) for row in rows})


class TrainingBatches:
    """The endless order of training: examples of ``seq_len`` tokens, shuffled anew in every epoch of their body of
    text, the bodies mixed in fixed proportions."""

    def __init__(
        self, cache: TokenCache | Mixture | Imported, *, seq_len: int, batch_size: int, seed: int, shuffle: bool = True
    ):
        """Raises DataError where a body does not fill one example."""
        self.cache, self.seq_len, self.batch_size = cache, seq_len, batch_size
        bodies, _ = bodies_of(cache, seq_len)
        for name, _, examples in bodies:
            if not examples.count:
                body = f"data.configs.{name}" if name else "data"
                raise DataError(f"{body}: {cache.tokens} tokens do not fill one sequence of model.seq_len {seq_len}")
        self._examples = [examples for _, _, examples in bodies]
        self._names = [name for name, _, _ in bodies]
        self._orders = [
            Shuffle(examples.count, f"{seed}\0{examples.key}" if shuffle else None) for examples in self._examples
        ]
        self._mixed = Interleave([share for _, share, _ in bodies], f"{seed}\0{cache.digest}") if bodies[1:] else None
        self.sequences = sum(examples.sequences for examples in self._examples)

    def locate(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of each of the run's samples (from 0) its body's number and its example there. int64 [n] -> two int64 [n]."""
        sample = np.asarray(sample, np.int64)
        if self._mixed is None:
            return np.zeros_like(sample), self._orders[0](sample)
        body, number = self._mixed(sample)
        example = np.empty_like(number)
        for one in np.unique(body):
            chosen = body == one
            example[chosen] = self._orders[one](number[chosen])
        return body, example

    def sequence_index(self, sample: np.ndarray) -> np.ndarray:
        """Which example of its body is the run's sample number ``sample`` (from 0). int64 [n] -> int64 [n]."""
        return self.locate(sample)[1]

    def batch(self, index: int) -> Batch:
        """Batch ``index``, in time that does not depend on ``index``."""
        return self.samples(index, index * self.batch_size, self.batch_size)

    def samples(self, index: int, first: int, count: int, rows: np.ndarray | None = None) -> Batch:
        """The run's samples [first, first + count), as batch ``index``. Only ``rows`` of it are read (int64 [n]; None:
        all)."""
        rows = np.arange(count) if rows is None else rows
        bodies, examples = self.locate(first + rows)
        for one in np.unique(bodies):
            self._examples[one].bring(examples[bodies == one])
        # Of zeros that are never touched, the system makes no pages.
        tokens = np.zeros((count, self.seq_len), np.int32)
        mask = np.zeros((count, self.seq_len), np.uint8)
        for row, body, example in zip(rows.tolist(), bodies.tolist(), examples.tolist(), strict=True):
            tokens[row], mask[row] = self._examples[body].read(example)
        return make_batch(index, tokens, mask, rows.tolist())

    def sizes(self) -> dict[str, int]:
        """The number of examples of each body of text, by name."""
        return {name: examples.sequences for name, examples in zip(self._names, self._examples, strict=True)}

    def epoch(self, index: int) -> float:
        """How many times the data has been read when batch ``index`` begins; of a mixture, its examples all told."""
        return index * self.batch_size / self.sequences

    def epochs(self, index: int) -> dict[str, float]:
        """The same for each body of text, by name."""
        samples = index * self.batch_size
        if self._mixed is None:
            return {self._names[0]: samples / self._examples[0].sequences}
        shares = self._mixed.shares / self._mixed.block
        return {
            name: float(samples * share / examples.sequences)
            for name, share, examples in zip(self._names, shares, self._examples, strict=True)
        }


@dataclass(frozen=True)
class Validation:
    """One set of each body of text, by name. The name is empty where there is one body alone."""

    sets: Mapping[str, TokenCache]
    asked: Mapping[str, str] = field(default_factory=dict)  # name -> the request for its text, as it was written

    def to_json(self) -> dict[str, dict[str, str]]:
        """As a checkpoint's provenance holds it: by name the cache's digest, and what was asked for."""
        return {name: {"digest": cache.digest, "asked": self.asked.get(name, "")} for name, cache in self.sets.items()}

    @property
    def tokens(self) -> int:
        return sum(cache.tokens for cache in self.sets.values())


def evaluation_batches(
    data: TokenCache | Validation, *, seq_len: int, batch_size: int, limit: int | None, rows: np.ndarray | None = None
) -> Iterator[Batch]:
    """Each set from its start, at most ``limit`` batches of it; its last batch is filled up with masked sequences.
    ``Batch.source`` names the set. Only ``rows`` of each batch are read (int64 [n]; None: all); nothing is hashed."""
    sets = {"": data} if isinstance(data, TokenCache) else data.sets
    wanted = range(batch_size) if rows is None else rows.tolist()
    for name, cache in sets.items():
        examples = Stretches(cache, seq_len)
        count = -(-examples.count // batch_size)
        for index in range(count if limit is None else min(count, limit)):
            tokens = np.zeros((batch_size, seq_len), np.int32)
            mask = np.zeros((batch_size, seq_len), np.uint8)
            for row in wanted:
                if index * batch_size + row < examples.count:
                    tokens[row], mask[row] = examples.read(index * batch_size + row)
            yield Batch(index, tokens, mask, {}, name)
