"""Kernels of attention within documents, in interpret mode: equal to the product of all pairs, read no other block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from haliax import NamedArray

from midstream_engine.config import ConfigError
from midstream_engine.models.document_attention import document_attention, document_bounds

BATCH, POSITIONS, HEADS, KV_HEADS, SIZE = 2, 320, 2, 1, 16
# Of each row: one of a single position, one that ends with a block of 128, one that crosses blocks; one document alone.
LENGTHS = ((1, 127, 100, 92), (POSITIONS,))


def segments() -> jax.Array:
    return jnp.asarray([np.repeat(np.arange(len(row)), row) for row in LENGTHS], jnp.int32)


def drawn() -> list[jax.Array]:
    """Queries, keys, values, and a weight for each number of the result."""
    random = np.random.default_rng(3)
    heads = (HEADS, KV_HEADS, KV_HEADS, HEADS)
    return [jnp.asarray(random.normal(size=(BATCH, POSITIONS, each, SIZE)), jnp.float32) for each in heads]


def attended(q: jax.Array, k: jax.Array, v: jax.Array, rows: jax.Array | None = None) -> jax.Array:
    order = hax.make_axes(batch=BATCH, position=q.shape[1])
    queries = (*order, *hax.make_axes(heads=HEADS, head_size=q.shape[3]))
    keys = (*order, *hax.make_axes(kv_heads=KV_HEADS, head_size=q.shape[3]))
    rows = segments() if rows is None else rows
    return document_attention(
        NamedArray(q, queries), NamedArray(k, keys), NamedArray(v, keys), NamedArray(rows, order)
    ).array


def test_equal_to_the_product_of_all_pairs_and_its_gradient() -> None:
    *inputs, weight = drawn()
    same = segments()[:, None, :, None] == segments()[:, None, None, :]

    def expected(*inputs: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(*inputs, mask=same, is_causal=True, scale=1.0, implementation="xla")

    def weighted(function: Callable[..., jax.Array]) -> Callable[..., Any]:
        return jax.jit(jax.value_and_grad(lambda *inputs: jnp.sum(function(*inputs) * weight), (0, 1, 2)))

    found, gradients = weighted(attended)(*inputs)
    value, wanted = weighted(expected)(*inputs)
    assert float(found) == pytest.approx(float(value), rel=1e-5)
    for one, other in zip(gradients, wanted, strict=True):
        assert float(jnp.abs(one - other).max()) <= 1e-5 * float(jnp.abs(other).max())


def test_reads_no_block_that_has_only_other_documents() -> None:
    """A block of numbers that are none would make every product with it none, a weight of 0 too."""
    q, k, v, _ = drawn()
    late = jnp.asarray([[0] * 256 + [1] * 64] * BATCH, jnp.int32)
    k, v = (array.at[:, :256].set(jnp.nan) for array in (k, v))
    out = attended(q, k, v, late)
    assert not bool(jnp.isfinite(out[:, :256]).any())
    assert bool(jnp.isfinite(out[:, 256:]).all())


def test_bounds_of_documents() -> None:
    starts, stops = document_bounds(jnp.asarray([[0, 0, 1, 3, 3, 3], [2, 2, 2, 2, 2, 2]], jnp.int32))
    assert starts.tolist() == [[0, 0, 2, 3, 3, 3], [0] * 6]
    assert stops.tolist() == [[2, 2, 3, 6, 6, 6], [6] * 6]


def test_shapes_without_kernels_are_refused() -> None:
    q, k, v = (jnp.zeros((BATCH, 24, heads, SIZE)) for heads in (HEADS, KV_HEADS, KV_HEADS))
    with pytest.raises(ConfigError, match="seq_len that is a multiple of 16, not 24"):
        attended(q, k, v, jnp.zeros((BATCH, 24), jnp.int32))
