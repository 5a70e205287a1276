"""What the trainer asks of a language model, and the loss that follows from it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import Gpt2Config, LmConfig

BATCH = "batch"
POSITION = "position"


class LmModel(eqx.Module):
    """An autoregressive language model. Every leaf is a NamedArray that is trained."""

    Vocab: eqx.AbstractVar[Axis]  # with its padding
    vocab_size: eqx.AbstractVar[int]  # without

    def __call__(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """Logits [batch, position, vocab] of the next token.

        ``tokens`` int32 [batch, position]. ``segments`` int32 [batch, position]: tokens see those of their own
        segment alone; None: all before them. ``keys`` uint32 [batch, "key"] for dropout; None: no dropout.
        """
        raise NotImplementedError

    def decayed(self) -> LmModel:
        """The same tree with True where weight decay applies: not to norms, embeddings and biases."""
        raise NotImplementedError


def init_model(config: LmConfig, vocab_size: int, key: PRNGKeyArray) -> LmModel:
    """A fresh model. float32, a function of ``config``, ``vocab_size`` and ``key`` alone."""
    Vocab = Axis("vocab", config.padded_vocab(vocab_size))
    if isinstance(config, Gpt2Config):
        from midstream_engine.models.gpt2 import Gpt2Model

        return Gpt2Model.init(config, Vocab, vocab_size, key=key)
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
    logits = model(tokens, None if eos is None else segments_of(tokens, eos), keys).astype(jnp.float32)
    real = hax.arange(model.Vocab) < model.vocab_size
    logits = hax.where(real, logits, -1e30)
    targets = hax.roll(tokens, -1, POSITION)
    chosen = logits.take(model.Vocab, targets)
    losses = hax.nn.logsumexp(logits, model.Vocab) - chosen
    return losses * loss_mask.astype(jnp.float32)
