"""Large-vocabulary cross-entropy with logits of one block of positions at a time.

The logits of all positions would be by far the largest array of a step: 16 x 1024 positions of GPT-2 are 3.3 GB in
float32. For training, the gradient of a block is computed with its logits, so that nothing is computed twice (as in Hsu
et al., "Liger Kernel", 2024).

The z-loss adds ``z_loss`` times the square of the logarithm of the softmax's normaliser to each position's loss, which
keeps logits near 0 (Chowdhery et al., "PaLM", 2022, section 5).
"""

from __future__ import annotations

from functools import partial

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from midstream_core.accelerators import find_accelerator
from midstream_core.logits import MAX_BLOCK
from midstream_engine.array_types import PyTree
from midstream_engine.models.axes import BATCH, EMBED, POSITION, VOCAB
from midstream_engine.models.row_product import row_product
from midstream_engine.models.sharding import (
    batch_shards,
    batch_sum,
    by_batch_shard,
    gathered,
    mesh_device_kind,
    mesh_platform,
)

# On an accelerator: this part of its memory, of 16 GiB where that is not known, and at most a GiB. With each block the
# head's gradient is read and written: on 8 H100 a step of a Llama with 1.24 billion parameters takes 2.48 s by
# estimate, with 256 MiB at a time 2.60 s, and no more memory. Blocks of more than a GiB are no faster on v6e, and save
# a hundredth of a step on v5p and a two hundredth on TPU7x, for 1.0 and 1.2 GiB.
_PART, _MEMORY, _MAX_BYTES = 16, 16 << 30, 1 << 30
# The compiler puts the last phases of the sum of the head's gradient after the backward pass of the layers, which then
# has the larger sum of the first phase in memory. Nothing hides them there, so they end before. Not on TPU7x:
# sparse cores send there while others compute, and 4.2 GB would be exposed, not 1.5.
_SENDS_BESIDE = "TPU7x"
_HIDDEN = -1e30  # the logit of a row that only pads the vocabulary


def positions_a_block(hidden: NamedArray, Vocab: Axis, limit: int | None) -> int:
    """Return the number of positions with logits at a time, a divisor of all.

    ``limit`` is returned if it is given.
    """
    positions = hidden.axis_size(POSITION)
    if limit is not None:
        return min(limit, positions)
    examples = hidden.axis_size(BATCH) // batch_shards()
    sizes = [size for size in range(positions, 0, -1) if positions % size == 0]
    return next((size for size in sizes if examples * size * Vocab.size <= largest_block()), 1)


def largest_block() -> int:
    """Return the number of float32 logits on a device at a time."""
    if mesh_platform() == "cpu":
        return MAX_BLOCK
    accelerator = find_accelerator(mesh_device_kind())
    return min(((accelerator.memory if accelerator else None) or _MEMORY) // _PART, _MAX_BYTES) // 4


def losses(hidden: NamedArray, head: NamedArray, targets: NamedArray, *, vocab_size: int, block: int) -> NamedArray:
    """Return the cross-entropy of each position in nats. float32 [batch, position].

    The backward pass computes a block's logits again.

    Args:
        hidden: [batch, position, embed].
        head: [vocab, embed] in any order.
        targets: int32 [batch, position].
        vocab_size: Size of the vocabulary without padding.
        block: Positions at a time, a divisor of all.
    """
    head = gathered(head)  # once, not by each block
    if block == hidden.axis_size(POSITION):
        return _block_losses(hidden, head, targets, vocab_size)
    measure = jax.checkpoint(partial(_block_losses, vocab_size=vocab_size))

    def step(_: None, start: jax.Array) -> tuple[None, jax.Array]:
        block_losses = measure(_slice(hidden, start, block), head, _slice(targets, start, block))
        return None, block_losses.rearrange((BATCH, POSITION)).array

    starts = jnp.arange(0, hidden.axis_size(POSITION), block)
    _, scanned_losses = jax.lax.scan(step, None, starts)
    axes = (hidden.resolve_axis(BATCH), hidden.resolve_axis(POSITION))
    return NamedArray(jnp.moveaxis(scanned_losses, 0, 1).reshape([axis.size for axis in axes]), axes)


def weighted_loss(
    hidden: NamedArray,
    head: NamedArray,
    targets: NamedArray,
    weights: NamedArray,
    *,
    vocab_size: int,
    block: int,
    z_loss: float = 0.0,
) -> jax.Array:
    """Return the sum of ``losses``, with the z-loss, times ``weights``: float32 [].

    ``weights`` get no gradient.

    Args:
        hidden: [batch, position, embed].
        head: [vocab, embed] in any order.
        targets: int32 [batch, position].
        weights: float32 [batch, position].
        vocab_size: Size of the vocabulary without padding.
        block: Positions at a time, a divisor of all.
        z_loss: Weight of the z-loss; 0: none.
    """
    # With one block XLA may choose the order of the products; on a TPU it would add the head's gradients by all-reduce.
    if block == hidden.axis_size(POSITION) and mesh_platform() != "tpu" and head.dtype == hidden.dtype:
        return hax.sum(_block_losses(hidden, gathered(head), targets, vocab_size, z_loss) * weights).scalar()
    order = (BATCH, POSITION)
    hidden, head = hidden.rearrange((*order, EMBED)), head.rearrange((VOCAB, EMBED))
    targets, weights = targets.rearrange(order), weights.rearrange(order)
    return _fused((vocab_size, block, z_loss), hidden.array, head.array, targets.array, weights.array)


def _block_losses(
    hidden: NamedArray, head: NamedArray, targets: NamedArray, vocab_size: int, z_loss: float = 0.0
) -> NamedArray:
    Vocab = head.resolve_axis(VOCAB)
    logits = row_product(hidden, head, (head.resolve_axis(EMBED),)).astype(jnp.float32)
    logits = hax.where(hax.arange(Vocab) < vocab_size, logits, _HIDDEN)
    normaliser = hax.nn.logsumexp(logits, Vocab)
    right = hax.arange(Vocab) == targets.broadcast_axis(Vocab)
    # A lookup would need the logits in memory; this sum is computed where they are.
    block_losses = normaliser - hax.sum(hax.where(right, logits, 0.0), Vocab)
    return block_losses + z_loss * normaliser**2 if z_loss else block_losses


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _fused(
    settings: tuple[int, int, float], hidden: PyTree, head: PyTree, targets: PyTree, weights: PyTree
) -> jax.Array:
    """Return the weighted sum of losses.

    Args:
        settings: vocab_size, block, z_loss.
        hidden: [B, S, D].
        head: [V, D]; with more bits than ``hidden`` its gradient is summed in them.
        targets: [B, S].
        weights: [B, S].
    """
    vocab_size, block, z_loss = settings
    head = _in_computation(head.astype(hidden.dtype))

    def step(total: jax.Array, start: jax.Array) -> tuple[jax.Array, None]:
        h, t, w = (jax.lax.dynamic_slice_in_dim(array, start, block, 1) for array in (hidden, targets, weights))
        logits = _logits(h, head, vocab_size)
        return total + _summed(logits, jax.nn.logsumexp(logits, -1), t, w, z_loss), None

    return jax.lax.scan(step, jnp.zeros(()), jnp.arange(0, hidden.shape[1], block))[0]


def _fused_forward(
    settings: tuple[int, int, float], hidden: PyTree, head: PyTree, targets: PyTree, weights: PyTree
) -> tuple[jax.Array, PyTree]:
    vocab_size, block, z_loss = settings
    dtype = head.dtype  # of its gradient's sum
    head = _in_computation(head.astype(hidden.dtype))
    # Each shard of the batch sums its own gradient of the head; they are added once, after the last block.

    def step(carry: tuple[jax.Array, jax.Array], start: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        total, head_gradient = carry
        h, t, w = (jax.lax.dynamic_slice_in_dim(array, start, block, 1) for array in (hidden, targets, weights))
        logits = _logits(h, head, vocab_size)
        normaliser = jax.nn.logsumexp(logits, -1)
        right = jnp.arange(head.shape[0]) == t[..., None]
        chances = jnp.exp(logits - normaliser[..., None])
        if z_loss:  # the gradient of the normaliser's logarithm is the softmax
            chances *= 1.0 + 2.0 * z_loss * normaliser[..., None]
        gradient = ((chances - right) * w[..., None]).astype(hidden.dtype)
        h_gradient = jnp.einsum("bpv,vd->bpd", gradient, head)
        added = jnp.einsum(
            "sbpv,sbpd->svd", by_batch_shard(gradient), by_batch_shard(h), preferred_element_type=jnp.float32
        )
        return (total + _summed(logits, normaliser, t, w, z_loss), head_gradient + added), h_gradient

    start = (jnp.zeros(()), jnp.zeros((batch_shards(), *head.shape), jnp.float32))
    (total, head_gradient), gradients = jax.lax.scan(step, start, jnp.arange(0, hidden.shape[1], block))
    hidden_gradient = jnp.moveaxis(gradients, 0, 1).reshape(hidden.shape)
    summed = batch_sum(head_gradient.astype(dtype), (VOCAB, EMBED))
    # With one block the gradient of all logits would still be in memory.
    if block < hidden.shape[1] and mesh_platform() == "tpu" and mesh_device_kind() != _SENDS_BESIDE:
        hidden_gradient, summed = jax.lax.optimization_barrier((hidden_gradient, summed))
    return total, (hidden_gradient, summed)


def _fused_backward(settings: tuple[int, int, float], gradients: PyTree, cotangent: jax.Array) -> tuple[PyTree, ...]:
    del settings
    hidden, head = ((gradient * cotangent).astype(gradient.dtype) for gradient in gradients)
    return hidden, head, None, None


_fused.defvjp(_fused_forward, _fused_backward)


def _in_computation(head: jax.Array) -> jax.Array:
    """Return the head [V, D] as the computation shards it.

    Each block would gather a head that is sharded as at rest.
    """
    axes = (Axis(VOCAB, head.shape[0]), Axis(EMBED, head.shape[1]))
    return gathered(NamedArray(head, axes)).array


def _logits(hidden: jax.Array, head: jax.Array, vocab_size: int) -> jax.Array:
    logits = jnp.einsum("bpd,vd->bpv", hidden, head).astype(jnp.float32)
    return jnp.where(jnp.arange(head.shape[0]) < vocab_size, logits, _HIDDEN)


def _summed(
    logits: jax.Array, normaliser: jax.Array, targets: jax.Array, weights: jax.Array, z_loss: float
) -> jax.Array:
    # A lookup would need the logits in memory; this sum is computed where they are.
    right = jnp.arange(logits.shape[-1]) == targets[..., None]
    block_losses = normaliser - jnp.sum(jnp.where(right, logits, 0.0), -1)
    if z_loss:
        block_losses += z_loss * normaliser**2
    return jnp.sum(block_losses * weights)


def _slice(array: NamedArray, start: jax.Array, size: int) -> NamedArray:
    return array[POSITION, hax.ds(start, size)]  # pyright: ignore[reportArgumentType]  (a traced start is meant)
