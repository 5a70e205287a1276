"""Batches of training and validation.

Batch k of training is a function of (k, seed, digest, seq_len, batch size) alone; validation sets keep their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from midstream_core import records
from midstream_engine.data.errors import DataError
from midstream_engine.data.example_order import Interleave, Shuffle
from midstream_engine.data.examples import Stretches
from midstream_engine.data.imported_data import ImportedData
from midstream_engine.data.mixture import Mixture, datasets_of
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.token_ids import first_unknown, unknown_id


@dataclass(frozen=True)
class Batch:
    """One batch of examples.

    ``tokens`` is int32 [batch, position]; ``loss_mask`` is uint8 [batch, position], 1 where the next token counts.
    ``digests`` has those of the rows that were read; other rows are zeros. ``source`` is the name of a validation set.
    """

    index: int
    tokens: np.ndarray
    loss_mask: np.ndarray
    digests: Mapping[int, bytes]
    source: str = ""

    @property
    def size(self) -> int:
        """Number of examples."""
        return self.tokens.shape[0]

    @property
    def digest(self) -> str:
        """Digest over the digests of the batch's examples, in global order.

        All rows of the batch must have been read.
        """
        return records.batch_digest(self.digests[row] for row in range(self.size))


def example_digest(tokens: np.ndarray, loss_mask: np.ndarray) -> bytes:
    """Return the SHA-256 of one example.

    The digest is over the tokens as little-endian int32, then the loss mask, a byte each.
    """
    digest = hashlib.sha256(np.ascontiguousarray(tokens, "<i4").data)
    digest.update(np.ascontiguousarray(loss_mask, np.uint8).data)
    return digest.digest()


def make_batch(index: int, tokens: np.ndarray, loss_mask: np.ndarray, rows: Iterable[int] | None = None) -> Batch:
    """Return a batch with the digests of ``rows``; None: of all."""
    rows = range(len(tokens)) if rows is None else rows
    return Batch(index, tokens, loss_mask, {row: example_digest(tokens[row], loss_mask[row]) for row in rows})


class TrainingBatches:
    """The endless sequence of training batches.

    Examples of ``seq_len`` tokens are shuffled again in every epoch of their dataset; datasets are mixed in fixed
    proportions.
    """

    def __init__(
        self,
        cache: TokenCache | Mixture | ImportedData,
        *,
        seq_len: int,
        batch_size: int,
        seed: int,
        shuffle: bool = True,
        ignored: int | None = None,
    ) -> None:
        """Open the data.

        Args:
            cache: Tokens of one dataset, a mixture, or another trainer's data.
            seq_len: Tokens of an example.
            batch_size: Examples of a batch.
            seed: Selects the order.
            shuffle: False: examples in stored order.
            ignored: A token that is no target; None: every token is one.

        Raises:
            DataError: A dataset does not fill one example.
        """
        self._ignored = ignored
        self.cache, self.seq_len, self.batch_size = cache, seq_len, batch_size
        datasets, _ = datasets_of(cache, seq_len)
        for name, _, examples in datasets:
            if not examples.count:
                key = f"data.configs.{name}" if name else "data"
                raise DataError(f"{key}: {cache.tokens} tokens do not fill one sequence of model.seq_len {seq_len}")
        self._examples = [examples for _, _, examples in datasets]
        self._names = [name for name, _, _ in datasets]
        self._orders = [
            Shuffle(examples.count, f"{seed}\0{examples.key}" if shuffle else None) for examples in self._examples
        ]
        self._mixed = (
            Interleave([share for _, share, _ in datasets], f"{seed}\0{cache.digest}") if datasets[1:] else None
        )
        self.sequences = sum(examples.sequences for examples in self._examples)

    def locate(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of the dataset and the example of each sample (from 0).

        int64 [n] -> two int64 [n].
        """
        sample = np.asarray(sample, np.int64)
        if self._mixed is None:
            return np.zeros_like(sample), self._orders[0](sample)
        dataset, number = self._mixed(sample)
        example = np.empty_like(number)
        for index in np.unique(dataset):
            chosen = dataset == index
            example[chosen] = self._orders[index](number[chosen])
        return dataset, example

    def batch(self, index: int) -> Batch:
        """Return batch ``index``, in time that does not depend on ``index``."""
        return self.samples(index, index * self.batch_size, self.batch_size)

    def samples(self, index: int, first: int, count: int, rows: np.ndarray | None = None) -> Batch:
        """Return the run's samples [first, first + count) as batch ``index``.

        Only ``rows`` of it (int64 [n]; None: all) are read.

        Raises:
            DataError: A sample cannot be read, or has a token id beyond the vocabulary.
        """
        rows = np.arange(count) if rows is None else rows
        datasets, examples = self.locate(first + rows)
        for number in np.unique(datasets):
            self._examples[number].prefetch(examples[datasets == number])
        # The system allocates no pages for zeros that are never written.
        tokens = np.zeros((count, self.seq_len), np.int32)
        mask = np.zeros((count, self.seq_len), np.uint8)
        for row, dataset, example in zip(rows.tolist(), datasets.tolist(), examples.tolist(), strict=True):
            tokens[row], mask[row] = self._examples[dataset].read(example)
        if (vocabulary := self.cache.vocab_size) and (at := first_unknown(tokens.ravel(), vocabulary)) is not None:
            row = at // self.seq_len
            dataset, example = (int(place[0]) for place in self.locate(np.array([first + row])))
            name = f"dataset {self._names[dataset]}" if self._names[dataset] else self.cache.directory
            place = f"{name}: sample {first + row} of the run, example {example} of the dataset,"
            raise unknown_id(place, int(tokens.flat[at]), vocabulary)
        return make_batch(index, tokens, _without(self._ignored, tokens, mask), rows.tolist())

    def sizes(self) -> dict[str, int]:
        """Return the number of examples of each dataset, by name."""
        return {name: examples.sequences for name, examples in zip(self._names, self._examples, strict=True)}

    def epoch(self, index: int) -> float:
        """Return how many times all examples have been read when batch ``index`` begins."""
        return index * self.batch_size / self.sequences


@dataclass(frozen=True)
class Validation:
    """The validation set of each dataset, by name.

    The name of a single dataset is empty.
    """

    sets: Mapping[str, TokenCache]
    requests: Mapping[str, str] = field(default_factory=dict)  # name -> request for its text

    def to_json(self) -> dict[str, dict[str, str]]:
        """Return each set's cache digest and request by name, for provenance.

        The provenance is a checkpoint's.
        """
        return {
            name: {"digest": cache.digest, "request": self.requests.get(name, "")} for name, cache in self.sets.items()
        }

    @property
    def tokens(self) -> int:
        """Number of tokens of all sets."""
        return sum(cache.tokens for cache in self.sets.values())


def evaluation_batches(
    data: TokenCache | Validation,
    *,
    seq_len: int,
    batch_size: int,
    limit: int | None,
    rows: np.ndarray | None = None,
    ignored: int | None = None,
) -> Iterator[Batch]:
    """Yield the batches of each validation set. ``Batch.source`` is its name.

    Args:
        data: Validation sets.
        seq_len: Tokens of an example.
        batch_size: Examples of a batch; masked sequences pad the last batch of a set.
        limit: Batches of each set, at most.
        rows: Rows of each batch that are read (int64 [n]; None: all). Nothing is hashed.
        ignored: A token that is no target; None: every token is one.
    """
    sets = {"": data} if isinstance(data, TokenCache) else data.sets
    indices = range(batch_size) if rows is None else rows.tolist()
    for name, cache in sets.items():
        examples = Stretches(cache, seq_len)
        count = -(-examples.count // batch_size)
        for index in range(count if limit is None else min(count, limit)):
            tokens = np.zeros((batch_size, seq_len), np.int32)
            mask = np.zeros((batch_size, seq_len), np.uint8)
            for row in indices:
                if index * batch_size + row < examples.count:
                    tokens[row], mask[row] = examples.read(index * batch_size + row)
            if (at := first_unknown(tokens.ravel(), cache.vocab_size)) is not None:
                place = f"{cache.directory}: example {index * batch_size + at // seq_len} of the validation set"
                raise unknown_id(f"{place} {name}".rstrip(), int(tokens.flat[at]), cache.vocab_size)
            yield Batch(index, tokens, _without(ignored, tokens, mask), {}, name)


def _without(ignored: int | None, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return ``mask`` without the positions whose next token is ``ignored``.

    ``mask`` is [batch, position] and changed in place.
    """
    if ignored is not None:
        mask[:, :-1] &= tokens[:, 1:] != ignored
    return mask
