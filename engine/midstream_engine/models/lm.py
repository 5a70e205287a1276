"""The interface of language models, and their loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray

from midstream_engine.array_types import Leaf, PyTree
from midstream_engine.models import loss
from midstream_engine.models.axes import BATCH, EMBED, POSITION
from midstream_engine.models.layers import Linear

__all__ = ["BATCH", "POSITION", "LmModel", "segments_of", "summed_loss", "token_losses"]


class LmModel(eqx.Module):
    """An autoregressive language model. Every leaf is a NamedArray that is trained."""

    config: eqx.AbstractVar[Any]  # an LmConfig
    Vocab: eqx.AbstractVar[Axis]  # with padding
    vocab_size: eqx.AbstractVar[int]  # without padding

    def hidden(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """Return the output of the last norm: [batch, position, embed].

        ``tokens`` int32 [batch, position]. ``segments`` int32 [batch, position]: tokens attend to those of their own
        segment alone; None: to all before them. ``keys`` uint32 [batch, "key"] for dropout; None: no dropout.
        """
        raise NotImplementedError

    def head(self) -> NamedArray:
        """Return the matrix that makes logits: vocab and embed, in either order."""
        raise NotImplementedError

    def __call__(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """Return next-token logits [batch, position, vocab]; arguments as in ``hidden``."""
        return hax.dot(self.hidden(tokens, segments, keys), self.head(), axis=EMBED)

    def decayed(self) -> LmModel:
        """Return the same tree with True where weight decay applies.

        Norms, embeddings and biases do not decay.
        """

        def mark(node: Leaf) -> PyTree:
            if isinstance(node, Linear):
                return dataclasses.replace(node, weight=True, bias=None if node.bias is None else False)
            return False

        return jax.tree.map(mark, self, is_leaf=lambda node: isinstance(node, (Linear, NamedArray)))


def segments_of(tokens: NamedArray, eos: int) -> NamedArray:
    """Return each token's document number in its row, int32 [batch, position].

    EOS ends a document.
    """
    ended = NamedArray((tokens.array == eos).astype(jnp.int32), tokens.axes)
    before: PyTree = hax.cumsum(ended, POSITION) - ended
    return before


def token_losses(
    model: LmModel,
    tokens: NamedArray,
    loss_mask: NamedArray,
    *,
    eos: int | None,
    keys: NamedArray | None = None,
) -> NamedArray:
    """Return the cross-entropy of each position's next token in nats.

    float32 [batch, position]; 0 where ``loss_mask`` is 0.

    Args:
        model: The model.
        tokens: Tokens, int32 [batch, position].
        loss_mask: Weight of the loss at each position [batch, position]; 0: not counted.
        eos: Limits attention to one document; None: no limit.
        keys: Dropout keys, one per example; None: no dropout.
    """
    hidden, targets, block = _prepared(model, tokens, eos, keys)
    loss_mask = _first(loss_mask, targets)
    block_losses = loss.losses(hidden, model.head(), targets, vocab_size=model.vocab_size, block=block)
    return block_losses * loss_mask.astype(jnp.float32)


def summed_loss(
    model: LmModel,
    tokens: NamedArray,
    loss_mask: NamedArray,
    *,
    eos: int | None,
    keys: NamedArray | None = None,
    z_loss: float = 0.0,
) -> jax.Array:
    """Return the sum of ``token_losses``, float32 [].

    The gradient computes no logits twice.

    Args:
        model: The model.
        tokens: Tokens, int32 [batch, position].
        loss_mask: Weight of the loss at each position [batch, position]; 0: not counted.
        eos: Token at which attention stops looking back; None: no limit.
        keys: Dropout keys, one per example; None: no dropout.
        z_loss: Weight of the z-loss of ``models/loss.py``, which is added for each counted position.
    """
    hidden, targets, block = _prepared(model, tokens, eos, keys)
    weights = _first(loss_mask, targets).astype(jnp.float32)
    return loss.weighted_loss(
        hidden, model.head(), targets, weights, vocab_size=model.vocab_size, block=block, z_loss=z_loss
    )


def _prepared(
    model: LmModel, tokens: NamedArray, eos: int | None, keys: NamedArray | None
) -> tuple[NamedArray, NamedArray, int]:
    targets = hax.roll(tokens, -1, POSITION)
    if tokens.axis_size(POSITION) == model.config.seq_len + 1:  # the last token is only a target
        tokens, targets = (array[POSITION, : model.config.seq_len] for array in (tokens, targets))
    hidden = model.hidden(tokens, None if eos is None else segments_of(tokens, eos), keys)
    block = loss.positions_a_block(hidden, model.Vocab, model.config.cross_entropy_block_size)
    return hidden, targets, block


def _first(array: NamedArray, like: NamedArray) -> NamedArray:
    """Return as many positions of ``array`` as ``like`` has."""
    size = like.axis_size(POSITION)
    return array if array.axis_size(POSITION) == size else array[POSITION, :size]
