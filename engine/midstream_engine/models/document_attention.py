"""Causal attention within documents, as kernels for GPUs.

On other platforms the kernels run in interpret mode, for tests.

A row is several documents, one after the other. Each position attends to those from the start of its document to
itself. A kernel visits only the blocks in which such positions are, so short documents cost less than one long one, and
no array of [position, position] exists: cuDNN needs one as bias, and writes another as its gradient.

The algorithm is that of Dao, "FlashAttention-2", 2023; sizes of blocks are those of Triton's tutorial 06 (fused
attention).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from midstream_engine.array_types import PyTree, Ref
from midstream_engine.config.errors import ConfigError
from midstream_engine.models.kernel_sizes import BLOCK, document_kernels_fit
from midstream_engine.models.kernel_sizes import HEADS as HEAD_SIZES
from midstream_engine.models.sharded_attention import sharded_attention
from midstream_engine.models.sharding import mesh_platform

_MASKED = -1e30  # a score of positions that do not attend to each other
# Positions at a time: outer are those of a program, inner those that it visits one block after the other.
_OUTER, _INNER = 128, 64
_OUTER_BACKWARD, _INNER_BACKWARD = 128, 32
_STAGES = 3  # blocks that are loaded before they are needed


class _KernelBlocks(NamedTuple):
    """Blocks of one kernel."""

    outer: int
    inner: int
    warps: int
    interpret: bool

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of ``pallas_call`` that say how to compile."""
        compiler = triton.CompilerParams(num_warps=self.warps, num_stages=_STAGES)
        return {"compiler_params": compiler, "interpret": self.interpret}


def document_attention(q: NamedArray, k: NamedArray, v: NamedArray, segments: NamedArray) -> NamedArray:
    """Return causal attention within segments: [batch, position, heads, head_size].

    Args:
        q: [batch, position, heads, head_size], already scaled.
        k: [batch, position, heads or kv_heads, head_size].
        v: [batch, position, heads or kv_heads, head_size].
        segments: int32 [batch, position], never smaller than at the position before.

    Raises:
        ConfigError: There are no kernels for this size of a head, or number of positions.
    """
    positions, size = q.axes[1].size, q.axes[3].size
    if not document_kernels_fit(positions, size):
        raise ConfigError(
            f"model.attn_backend: triton attention needs a seq_len that is a multiple of {BLOCK}, "
            f"not {positions}, and a head size of {', '.join(map(str, HEAD_SIZES))}, not {size}; use cudnn"
        )
    local = partial(_on_device, interpret=mesh_platform() != "gpu")
    return sharded_attention(local, q, k, v, segments)


def document_bounds(segments: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return begin and end of each position's document, both int32 [batch, position]."""
    positions = jnp.arange(segments.shape[1], dtype=jnp.int32)
    begins = jnp.diff(segments, axis=1, prepend=segments[:, :1] - 1) != 0
    ends = jnp.roll(begins, -1, axis=1).at[:, -1].set(True)
    starts = jax.lax.cummax(jnp.where(begins, positions, 0), axis=1)
    stops = jax.lax.cummin(jnp.where(ends, positions + 1, segments.shape[1]), axis=1, reverse=True)
    return starts, stops


def _on_device(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, *, interpret: bool) -> jax.Array:
    return _attention(interpret, q, k, v, *document_bounds(segments))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    interpret: bool, q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array, stops: jax.Array
) -> jax.Array:
    del stops
    return _forward(interpret, q, k, v, starts)[0]


def _attention_forward(
    interpret: bool, q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array, stops: jax.Array
) -> tuple[jax.Array, PyTree]:
    out, normaliser = (checkpoint_name(array, "attention") for array in _forward(interpret, q, k, v, starts))
    return out, (q, k, v, starts, stops, out, normaliser)


def _attention_backward(interpret: bool, residuals: PyTree, gradient: jax.Array) -> tuple[PyTree, ...]:
    q, k, v, starts, stops, out, normaliser = residuals
    # The sum over keys of weight times its gradient is the same product over the head's size.
    product = jnp.einsum("bshd,bshd->bhs", out.astype(jnp.float32), gradient.astype(jnp.float32))
    given = _Backward(q, k, v, gradient, normaliser, product, starts)
    return _query_gradient(interpret, given), *_key_gradients(interpret, given, stops), None, None


_attention.defvjp(_attention_forward, _attention_backward)


class _Backward(NamedTuple):
    """Inputs of the backward kernels."""

    q: jax.Array
    k: jax.Array
    v: jax.Array
    gradient: jax.Array  # of the result
    normaliser: jax.Array
    product: jax.Array  # of result and gradient, over the head's size: float32 [batch, heads, position]
    starts: jax.Array


def _blocks(positions: int, head_size: int, outer: int, inner: int, *, interpret: bool) -> _KernelBlocks:
    def block(most: int) -> int:
        return next(size for size in (128, 64, 32, BLOCK) if size <= most and positions % size == 0)

    return _KernelBlocks(block(outer), block(inner), 4 if head_size <= 64 else 8, interpret)


def _forward(
    interpret: bool, q: jax.Array, k: jax.Array, v: jax.Array, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the result, and the logarithm of each softmax's normaliser.

    The logarithm is float32 [batch, heads, position].
    """
    batch, positions, heads, size = q.shape
    blocks = _blocks(positions, size, _OUTER, _INNER, interpret=interpret)
    copies = heads // k.shape[2]

    def kernel(q_ref: Ref, k_ref: Ref, v_ref: Ref, starts_ref: Ref, out_ref: Ref, normaliser_ref: Ref) -> None:
        rows = pl.program_id(0) * blocks.outer + jnp.arange(blocks.outer)
        q, first = q_ref[...], starts_ref[...]

        def visit(number: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> PyTree:
            most, total, out = carry
            columns = number * blocks.inner + jnp.arange(blocks.inner)
            at = pl.ds(number * blocks.inner, blocks.inner)
            scores = _scores(q, k_ref[at, :], rows, first, columns)
            higher = jnp.maximum(most, jnp.max(scores, axis=1))
            weights, scale = jnp.exp(scores - higher[:, None]), jnp.exp(most - higher)
            out = out * scale[:, None] + _dot(weights.astype(v_ref.dtype), v_ref[at, :])
            return higher, total * scale + jnp.sum(weights, axis=1), out

        begin = (
            jnp.full((blocks.outer,), 2 * _MASKED, jnp.float32),
            jnp.zeros((blocks.outer,), jnp.float32),
            jnp.zeros((blocks.outer, size), jnp.float32),
        )
        visited = _visited(starts_ref[0], pl.program_id(0), blocks)
        most, total, out = jax.lax.fori_loop(*visited, visit, begin)
        out_ref[...] = (out / total[:, None]).astype(out_ref.dtype)
        normaliser_ref[...] = most + jnp.log(total)

    own = pl.BlockSpec((None, blocks.outer, None, size), lambda i, h, b: (b, i, h, 0))
    keys = pl.BlockSpec((None, positions, None, size), lambda _, h, b: (b, 0, h // copies, 0))
    return pl.pallas_call(
        kernel,
        grid=(positions // blocks.outer, heads, batch),
        in_specs=[own, keys, keys, pl.BlockSpec((None, blocks.outer), lambda i, _, b: (b, i))],
        out_specs=[own, pl.BlockSpec((None, None, blocks.outer), lambda i, h, b: (b, h, i))],
        out_shape=[
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((batch, heads, positions), jnp.float32),
        ],
        name="document_attention_forward",
        **blocks.parameters(),
    )(q, k, v, starts)


def _query_gradient(interpret: bool, given: _Backward) -> jax.Array:
    batch, positions, heads, size = given.q.shape
    blocks = _blocks(positions, size, _OUTER_BACKWARD, _INNER_BACKWARD, interpret=interpret)
    copies = heads // given.k.shape[2]

    def kernel(*references: Ref) -> None:
        refs, out_ref = _Backward(*references[:-1]), references[-1]
        rows = pl.program_id(0) * blocks.outer + jnp.arange(blocks.outer)
        q, gradient, first = refs.q[...], refs.gradient[...], refs.starts[...]
        normaliser, product = refs.normaliser[...], refs.product[...]

        def visit(number: jax.Array, out: jax.Array) -> jax.Array:
            columns = number * blocks.inner + jnp.arange(blocks.inner)
            at = pl.ds(number * blocks.inner, blocks.inner)
            keys = refs.k[at, :]
            weights = jnp.exp(_scores(q, keys, rows, first, columns) - normaliser[:, None])
            of_scores = weights * (_dot(gradient, refs.v[at, :].T) - product[:, None])
            return out + _dot(of_scores.astype(keys.dtype), keys)

        visited = _visited(refs.starts[0], pl.program_id(0), blocks)
        out = jax.lax.fori_loop(*visited, visit, jnp.zeros((blocks.outer, size), jnp.float32))
        out_ref[...] = out.astype(out_ref.dtype)

    own = pl.BlockSpec((None, blocks.outer, None, size), lambda i, h, b: (b, i, h, 0))
    keys = pl.BlockSpec((None, positions, None, size), lambda _, h, b: (b, 0, h // copies, 0))
    of_rows = pl.BlockSpec((None, None, blocks.outer), lambda i, h, b: (b, h, i))
    starts = pl.BlockSpec((None, blocks.outer), lambda i, _, b: (b, i))
    return pl.pallas_call(
        kernel,
        grid=(positions // blocks.outer, heads, batch),
        in_specs=[own, keys, keys, own, of_rows, of_rows, starts],
        out_specs=own,
        out_shape=jax.ShapeDtypeStruct(given.q.shape, given.q.dtype),
        name="document_attention_query_gradient",
        **blocks.parameters(),
    )(*given)


def _key_gradients(interpret: bool, given: _Backward, stops: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of keys and of values, summed over the heads sharing them."""
    batch, positions, heads, size = given.q.shape
    blocks = _blocks(positions, size, _OUTER_BACKWARD, _INNER_BACKWARD, interpret=interpret)
    copies = heads // given.k.shape[2]

    def kernel(*references: Ref) -> None:
        refs, (stops_ref, k_out_ref, v_out_ref) = _Backward(*references[:7]), references[7:]
        columns = pl.program_id(0) * blocks.outer + jnp.arange(blocks.outer)
        keys, values = refs.k[...], refs.v[...]

        # [key, query], so that no product needs its weights transposed.
        def visit(number: jax.Array, carry: tuple[jax.Array, jax.Array], head: jax.Array) -> PyTree:
            k_out, v_out = carry
            rows = number * blocks.inner + jnp.arange(blocks.inner)
            at = pl.ds(number * blocks.inner, blocks.inner)
            q, gradient = refs.q[at, head, :], refs.gradient[at, head, :]
            inside = (columns[:, None] <= rows[None, :]) & (columns[:, None] >= refs.starts[at][None, :])
            scores = jnp.where(inside, _dot(keys, q.T), _MASKED)
            weights = jnp.exp(scores - refs.normaliser[head, at][None, :])
            v_out = v_out + _dot(weights.astype(gradient.dtype), gradient)
            of_scores = weights * (_dot(values, gradient.T) - refs.product[head, at][None, :])
            return k_out + _dot(of_scores.astype(q.dtype), q), v_out

        # From the block of the diagonal to the end of the last document that begins here.
        visited = pl.program_id(0) * blocks.outer // blocks.inner, pl.cdiv(stops_ref[blocks.outer - 1], blocks.inner)

        def of_head(head: jax.Array, carry: tuple[jax.Array, jax.Array]) -> PyTree:
            return jax.lax.fori_loop(*visited, lambda number, carry: visit(number, carry, head), carry)

        zeros = jnp.zeros((blocks.outer, size), jnp.float32)
        k_out, v_out = jax.lax.fori_loop(0, copies, of_head, (zeros, zeros))
        k_out_ref[...], v_out_ref[...] = k_out.astype(k_out_ref.dtype), v_out.astype(v_out_ref.dtype)

    group = pl.BlockSpec((None, positions, copies, size), lambda _, g, b: (b, 0, g, 0))
    own = pl.BlockSpec((None, blocks.outer, None, size), lambda i, g, b: (b, i, g, 0))
    of_group = pl.BlockSpec((None, copies, positions), lambda _, g, b: (b, g, 0))
    starts = pl.BlockSpec((None, positions), lambda _, __, b: (b, 0))
    stopping = pl.BlockSpec((None, blocks.outer), lambda i, _, b: (b, i))
    return pl.pallas_call(
        kernel,
        grid=(positions // blocks.outer, heads // copies, batch),
        in_specs=[group, own, own, group, of_group, of_group, starts, stopping],
        out_specs=[own, own],
        out_shape=[jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (given.k, given.v)],
        name="document_attention_key_gradients",
        **blocks.parameters(),
    )(*given, stops)


def _visited(start: jax.Array, number: jax.Array, blocks: _KernelBlocks) -> tuple[jax.Array, jax.Array]:
    """Return the blocks of keys for block ``number`` of queries.

    The first document of this block begins at ``start``.
    """
    return start // blocks.inner, pl.cdiv((number + 1) * blocks.outer, blocks.inner)


def _scores(q: jax.Array, k: jax.Array, rows: jax.Array, starts: jax.Array, columns: jax.Array) -> jax.Array:
    inside = (columns[None, :] <= rows[:, None]) & (columns[None, :] >= starts[:, None])
    return jnp.where(inside, _dot(q, k.T), _MASKED)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)
