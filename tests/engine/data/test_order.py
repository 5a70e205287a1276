"""The stateless order of examples: a seekable permutation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midstream_core import records
from midstream_engine.data.batches import TrainingBatches, evaluation_batches, example_digest
from midstream_engine.data.errors import DataError
from midstream_engine.data.permutation import Permutation
from midstream_engine.data.prefetch import Prefetch
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import ByteTokenizer
from support.checkpoints.token_caches import build


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), key=st.binary(max_size=16))
def test_permutation_hits_each_index_once(n: int, key: bytes) -> None:
    assert sorted(Permutation(n, key)(np.arange(n)).tolist()) == list(range(n))


def test_permutation_maps_single_and_distant_indices() -> None:
    permutation = Permutation(10**12 + 7, b"key")
    far = np.array([0, 1, 10**12, 10**12 + 6])
    together = permutation(far)
    assert [int(permutation(far[i : i + 1])[0]) for i in range(4)] == together.tolist()
    assert ((together >= 0) & (together < 10**12 + 7)).all()


def test_permutation_is_pinned() -> None:
    """Another order would silently change each resumed run, so this may never change."""
    assert Permutation(10, b"midstream")(np.arange(10)).tolist() == [2, 0, 3, 1, 8, 7, 5, 9, 4, 6]


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    rng = np.random.default_rng(7)
    texts = [bytes(rng.integers(32, 127, int(size), dtype=np.uint8)) for size in rng.integers(1, 200, 40)]
    return build(str(tmp_path), texts, ByteTokenizer())


def test_epoch_reads_each_sequence_once_and_next_differs(cache: TokenCache) -> None:
    batches = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0)
    n = batches.sequences
    first, second = batches.locate(np.arange(n))[1], batches.locate(np.arange(n, 2 * n))[1]
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(n))
    assert first.tolist() != second.tolist()


def test_batch_is_independent_of_earlier_ones(cache: TokenCache) -> None:
    walked = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0)
    digests = [walked.batch(index).digest for index in range(200)]  # past several epochs
    for index in (199, 0, 57, 131):
        sought = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0)
        assert sought.batch(index).digest == digests[index]
    assert len(set(digests)) == len(digests)
    assert TrainingBatches(cache, seq_len=16, batch_size=4, seed=1).batch(0).digest != digests[0]


def test_batch_digest_equals_records(cache: TokenCache) -> None:
    batch = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0).batch(3)
    assert (batch.tokens.dtype, batch.tokens.shape, batch.loss_mask.shape) == (np.int32, (4, 16), (4, 16))
    assert (batch.loss_mask[:, :-1] == 1).all()
    assert (batch.loss_mask[:, -1] == 0).all()
    examples = [example_digest(batch.tokens[i], batch.loss_mask[i]) for i in range(4)]
    assert records.batch_digest(examples) == batch.digest


def test_last_evaluation_batch_is_filled_with_masked_rows(cache: TokenCache) -> None:
    sequences = cache.tokens // 16
    batches = list(evaluation_batches(cache, seq_len=16, batch_size=8, limit=None))
    assert sum(int(batch.loss_mask[:, 0].sum()) for batch in batches) == sequences
    assert len(list(evaluation_batches(cache, seq_len=16, batch_size=8, limit=2))) == 2


def test_too_little_text_is_reported(cache: TokenCache) -> None:
    with pytest.raises(DataError, match="do not fill one sequence"):
        TrainingBatches(cache, seq_len=cache.tokens + 1, batch_size=1, seed=0)


def test_prefetch_keeps_order_and_raises_errors() -> None:
    def make(index: int) -> int:
        if index == 8:
            raise RuntimeError("index 8")
        return index

    prefetch = Prefetch(make, 3)
    try:
        assert [prefetch.next() for _ in range(5)] == [3, 4, 5, 6, 7]
        with pytest.raises(RuntimeError, match="index 8"):
            prefetch.next()
    finally:
        prefetch.close()


def test_ignored_token_is_no_target(cache: TokenCache) -> None:
    plain = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0).batch(2)
    ignored = int(plain.tokens[1, 5])
    found = TrainingBatches(cache, seq_len=16, batch_size=4, seed=0, ignored=ignored).batch(2)
    np.testing.assert_array_equal(found.tokens, plain.tokens)
    expected = plain.loss_mask.copy()
    expected[:, :-1][plain.tokens[:, 1:] == ignored] = 0
    np.testing.assert_array_equal(found.loss_mask, expected)
    assert (plain.loss_mask[1, 4], found.loss_mask[1, 4]) == (1, 0)
    assert found.digest != plain.digest
    (batch,) = evaluation_batches(cache, seq_len=16, batch_size=8, limit=1, ignored=ignored)
    assert not np.any(batch.loss_mask[:, :-1][batch.tokens[:, 1:] == ignored])
