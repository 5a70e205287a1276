"""Cross-entropy over a large vocabulary, without ever holding the logits of all positions.

The logits are by far the largest array of a step: 16 x 1024 positions of GPT-2 are 3.3 GB in float32. Here they exist
for one block of positions at a time. For training, the gradient of a block is computed while its logits are there, so
that nothing is computed twice (as in Hsu et al., "Liger Kernel", 2024).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax.sharding import PartitionSpec

from midstream_engine.models.axes import BATCH, EMBED, POSITION, VOCAB

LARGEST_BLOCK = 1 << 26  # float32 logits on a device at a time: 256 MiB
_HIDDEN = -1e30  # the logit of a row that only pads the vocabulary


def positions_a_block(hidden: NamedArray, Vocab: Axis, wanted: int | None) -> int:
    """How many positions have logits at a time: a divisor of all of them, ``wanted`` where it is given."""
    positions = hidden.axis_size(POSITION)
    if wanted is not None:
        return min(wanted, positions)
    examples = hidden.axis_size(BATCH) // _batch_shards()
    sizes = [size for size in range(positions, 0, -1) if positions % size == 0]
    return next((size for size in sizes if examples * size * Vocab.size <= LARGEST_BLOCK), 1)


def losses(hidden: NamedArray, head: NamedArray, targets: NamedArray, *, vocab_size: int, block: int) -> NamedArray:
    """Cross-entropy of each position in nats. float32 [batch, position].

    ``hidden`` [batch, position, embed], ``head`` [vocab, embed] in any order, ``targets`` int32 [batch, position].
    ``block``: positions at a time, a divisor of all. The backward pass computes a block's logits again.
    """
    if block == hidden.axis_size(POSITION):
        return _block_losses(hidden, head, targets, vocab_size)
    measure = jax.checkpoint(partial(_block_losses, vocab_size=vocab_size))

    def step(_: None, start: jax.Array) -> tuple[None, jax.Array]:
        part = measure(_slice(hidden, start, block), head, _slice(targets, start, block))
        return None, part.rearrange((BATCH, POSITION)).array

    starts = jnp.arange(0, hidden.axis_size(POSITION), block)
    _, found = jax.lax.scan(step, None, starts)
    axes = (hidden.resolve_axis(BATCH), hidden.resolve_axis(POSITION))
    return NamedArray(jnp.moveaxis(found, 0, 1).reshape([axis.size for axis in axes]), axes)


def weighted_loss(
    hidden: NamedArray, head: NamedArray, targets: NamedArray, weights: NamedArray, *, vocab_size: int, block: int
) -> jax.Array:
    """The sum of ``losses`` times ``weights`` (float32 [batch, position]), float32 []; arguments as for ``losses``.

    No gradient flows into ``weights``.
    """
    if block == hidden.axis_size(POSITION):
        return hax.sum(_block_losses(hidden, head, targets, vocab_size) * weights).scalar()
    order = (BATCH, POSITION)
    hidden, head = hidden.rearrange((*order, EMBED)), head.rearrange((VOCAB, EMBED))
    targets, weights = targets.rearrange(order), weights.rearrange(order)
    return _fused((vocab_size, block), hidden.array, head.array, targets.array, weights.array)


def _block_losses(hidden: NamedArray, head: NamedArray, targets: NamedArray, vocab_size: int) -> NamedArray:
    Vocab = head.resolve_axis(VOCAB)
    logits = hax.dot(hidden, head, axis=EMBED).astype(jnp.float32)
    logits = hax.where(hax.arange(Vocab) < vocab_size, logits, _HIDDEN)
    return hax.nn.logsumexp(logits, Vocab) - logits.take(Vocab, targets)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(sizes: tuple[int, int], hidden: Any, head: Any, targets: Any, weights: Any) -> jax.Array:
    """``sizes``: vocab_size, block. hidden [B, S, D], head [V, D], targets and weights [B, S]."""
    vocab_size, block = sizes

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        h, t, w = (jax.lax.dynamic_slice_in_dim(array, start, block, 1) for array in (hidden, targets, weights))
        logits = _logits(h, head, vocab_size)
        return total + _summed(logits, jax.nn.logsumexp(logits, -1), t, w), None

    return jax.lax.scan(step, jnp.zeros(()), jnp.arange(0, hidden.shape[1], block))[0]


def _fused_forward(sizes: tuple[int, int], hidden: Any, head: Any, targets: Any, weights: Any) -> tuple[jax.Array, Any]:
    vocab_size, block = sizes
    # Each part of the batch adds up its own gradient of the head, and the parts meet once, after the last block.
    shards = _batch_shards()
    parts = partial(_by_shard, shards=shards)

    def step(carry: tuple[jax.Array, jax.Array], start: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        total, head_gradient = carry
        h, t, w = (jax.lax.dynamic_slice_in_dim(array, start, block, 1) for array in (hidden, targets, weights))
        logits = _logits(h, head, vocab_size)
        normaliser = jax.nn.logsumexp(logits, -1)
        right = jnp.arange(head.shape[0]) == t[..., None]
        gradient = ((jnp.exp(logits - normaliser[..., None]) - right) * w[..., None]).astype(hidden.dtype)
        h_gradient = jnp.einsum("bpv,vd->bpd", gradient, head)
        added = jnp.einsum("sbpv,sbpd->svd", parts(gradient), parts(h), preferred_element_type=jnp.float32)
        return (total + _summed(logits, normaliser, t, w), head_gradient + added), h_gradient

    start = (jnp.zeros(()), jnp.zeros((shards, *head.shape), jnp.float32))
    (total, head_gradient), gradients = jax.lax.scan(step, start, jnp.arange(0, hidden.shape[1], block))
    hidden_gradient = jnp.moveaxis(gradients, 0, 1).reshape(hidden.shape)
    return total, (hidden_gradient, jnp.sum(head_gradient, 0).astype(head.dtype))


def _fused_backward(sizes: tuple[int, int], gradients: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    del sizes
    hidden, head = ((gradient * cotangent).astype(gradient.dtype) for gradient in gradients)
    return hidden, head, None, None


_fused.defvjp(_fused_forward, _fused_backward)


def _logits(hidden: jax.Array, head: jax.Array, vocab_size: int) -> jax.Array:
    logits = jnp.einsum("bpd,vd->bpv", hidden, head).astype(jnp.float32)
    return jnp.where(jnp.arange(head.shape[0]) < vocab_size, logits, _HIDDEN)


def _summed(logits: jax.Array, normaliser: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return jnp.sum((normaliser - chosen) * weights)


def _slice(array: NamedArray, start: jax.Array, size: int) -> NamedArray:
    return array[POSITION, hax.ds(start, size)]  # pyright: ignore[reportArgumentType]  (a traced start is meant)


def _by_shard(array: jax.Array, shards: int) -> jax.Array:
    """[batch, ...] -> [shards, batch / shards, ...], the first axis cut over the mesh as the batch was."""
    cut = array.reshape(shards, -1, *array.shape[1:])
    if shards == 1:
        return cut
    rest = [PartitionSpec.UNCONSTRAINED] * (cut.ndim - 1)
    return jax.lax.with_sharding_constraint(cut, PartitionSpec(hax.partitioning.physical_axis_name(BATCH), *rest))


def _batch_shards() -> int:
    """Over how many parts of the mesh the batch is cut; 1 where there is no mesh."""
    if hax.partitioning.physical_axis_name(BATCH) is None:
        return 1
    return hax.partitioning.physical_axis_size(BATCH) or 1
