"""What the trainer asks of a language model, and the loss that follows from it."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import Gpt2Config, LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.models import loss
from midstream_engine.models.axes import BATCH, EMBED, POSITION
from midstream_engine.models.layers import Linear

__all__ = ["BATCH", "POSITION", "LmModel", "init_model", "segments_of", "summed_loss", "token_losses"]


class LmModel(eqx.Module):
    """An autoregressive language model. Every leaf is a NamedArray that is trained."""

    config: eqx.AbstractVar[Any]  # its LmConfig
    Vocab: eqx.AbstractVar[Axis]  # with its padding
    vocab_size: eqx.AbstractVar[int]  # without

    def hidden(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """What the last norm gives: [batch, position, embed].

        ``tokens`` int32 [batch, position]. ``segments`` int32 [batch, position]: tokens see those of their own
        segment alone; None: all before them. ``keys`` uint32 [batch, "key"] for dropout; None: no dropout.
        """
        raise NotImplementedError

    def head(self) -> NamedArray:
        """What turns it into logits: vocab and embed, in either order."""
        raise NotImplementedError

    def __call__(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """Logits [batch, position, vocab] of the next token; arguments as for ``hidden``."""
        return hax.dot(self.hidden(tokens, segments, keys), self.head(), axis=EMBED)

    def decayed(self) -> LmModel:
        """The same tree with True where weight decay applies: not to norms, embeddings and biases."""

        def mark(node: Any) -> Any:
            if isinstance(node, Linear):
                return dataclasses.replace(node, weight=True, bias=None if node.bias is None else False)
            return False

        return jax.tree.map(mark, self, is_leaf=lambda node: isinstance(node, (Linear, NamedArray)))


def init_model(config: LmConfig, vocab_size: int, key: PRNGKeyArray) -> LmModel:
    """A fresh model. float32, a function of ``config``, ``vocab_size`` and ``key`` alone."""
    Vocab = Axis("vocab", config.padded_vocab(vocab_size))
    if isinstance(config, Gpt2Config):
        from midstream_engine.models.gpt2 import Gpt2Model

        return Gpt2Model.init(config, Vocab, vocab_size, key=key)
    if isinstance(config, LlamaConfig):
        from midstream_engine.models.llama import LlamaModel

        return LlamaModel.init(config, Vocab, vocab_size, key=key)
    if isinstance(config, NeoxConfig):
        from midstream_engine.models.neox import NeoxModel

        return NeoxModel.init(config, Vocab, vocab_size, key=key)
    raise TypeError(f"no model for {type(config).__name__}")


def segments_of(tokens: NamedArray, eos: int) -> NamedArray:
    """Which document of its row each token belongs to; an EOS ends its own. int32 [batch, position]."""
    ended = NamedArray((tokens.array == eos).astype(jnp.int32), tokens.axes)
    before: Any = hax.cumsum(ended, POSITION) - ended
    return before


def token_losses(
    model: LmModel,
    tokens: NamedArray,
    loss_mask: NamedArray,
    *,
    eos: int | None,
    keys: NamedArray | None = None,
) -> NamedArray:
    """Cross-entropy of each position's next token in nats, 0 where ``loss_mask`` is 0. float32 [batch, position].

    ``eos`` ends the view of attention at documents' ends; None lets it pass.
    """
    hidden, targets, block = _prepared(model, tokens, eos, keys)
    loss_mask = _first(loss_mask, targets)
    found = loss.losses(hidden, model.head(), targets, vocab_size=model.vocab_size, block=block)
    return found * loss_mask.astype(jnp.float32)


def summed_loss(
    model: LmModel,
    tokens: NamedArray,
    loss_mask: NamedArray,
    *,
    eos: int | None,
    keys: NamedArray | None = None,
) -> jax.Array:
    """The sum of ``token_losses``, float32 []: what to differentiate, because no logits are computed twice for it."""
    hidden, targets, block = _prepared(model, tokens, eos, keys)
    weights = _first(loss_mask, targets).astype(jnp.float32)
    return loss.weighted_loss(hidden, model.head(), targets, weights, vocab_size=model.vocab_size, block=block)


def _prepared(
    model: LmModel, tokens: NamedArray, eos: int | None, keys: NamedArray | None
) -> tuple[NamedArray, NamedArray, int]:
    targets = hax.roll(tokens, -1, POSITION)
    if tokens.axis_size(POSITION) == model.config.seq_len + 1:  # the last token is a target alone
        tokens, targets = (part[POSITION, : model.config.seq_len] for part in (tokens, targets))
    hidden = model.hidden(tokens, None if eos is None else segments_of(tokens, eos), keys)
    block = loss.positions_a_block(hidden, model.Vocab, model.config.cross_entropy_block_size)
    return hidden, targets, block


def _first(array: NamedArray, like: NamedArray) -> NamedArray:
    """As many positions of ``array`` as ``like`` has."""
    size = like.axis_size(POSITION)
    return array if array.axis_size(POSITION) == size else array[POSITION, :size]
