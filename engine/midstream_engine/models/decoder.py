"""Common structure of all models: embedding, stacked blocks, last norm, head."""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import haliax as hax
import jax
from haliax import Axis, NamedArray
from haliax.nn import Stacked
from jaxtyping import PRNGKeyArray

from midstream_engine.array_types import PyTree
from midstream_engine.config.model import LmConfig
from midstream_engine.models.axes import BATCH, EMBED, MLP, POSITION
from midstream_engine.models.causal_attention import View, choose_backend
from midstream_engine.models.layers import Embedding, LayerNorm, Linear, RmsNorm, activation
from midstream_engine.models.lm import LmModel
from midstream_engine.models.stacked_layers import fold, saveable, stack


class Decoder(LmModel):
    """A language model of blocks.

    A subclass defines its last norm and the arguments of its blocks.

    A block is called with x [batch, position, embed], the ``View`` of attention and the result of ``_given``.
    """

    token_embeddings: Embedding
    blocks: Stacked[PyTree]
    lm_head: Linear | None  # None: the embedding's
    config: Any = eqx.field(static=True)
    Vocab: Axis = eqx.field(static=True)
    vocab_size: int = eqx.field(static=True)

    def hidden(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        """Return the output of the last norm; see :class:`LmModel`."""
        Position = tokens.resolve_axis(POSITION)
        x = self._embedded(tokens, keys)
        drops = keys is not None and getattr(self.config, "attn_pdrop", 0.0) > 0
        backend = choose_backend(self.config, x.dtype, dropout=drops, documents=segments is not None)
        view = View.of(Position, segments, backend)
        given = self._given(Position, keys)
        return self._last_norm(fold(self.blocks, self.config.gradient_checkpointing, x, view, *given))

    def head(self) -> NamedArray:
        """Return the matrix that makes logits."""
        return self.token_embeddings.weight if self.lm_head is None else self.lm_head.weight

    @property
    def _last_norm(self) -> LayerNorm | RmsNorm:
        raise NotImplementedError

    def _embedded(self, tokens: NamedArray, keys: NamedArray | None) -> NamedArray:
        """Map [batch, position] to [batch, position, embed].

        ``keys``: for dropout, if the model has it.
        """
        del keys
        order = (tokens.resolve_axis(BATCH), tokens.resolve_axis(POSITION), ...)
        return hax.auto_sharded(self.token_embeddings(tokens).rearrange(order))

    def _given(self, Position: Axis, keys: NamedArray | None) -> tuple[PyTree, ...]:
        """Return a block's further arguments.

        Of an argument with a ``layers`` axis a block gets its slice.
        """
        raise NotImplementedError


def frame(
    block: type, config: LmConfig, Vocab: Axis, vocab_size: int, key: PRNGKeyArray, *, tied: bool
) -> tuple[dict[str, Any], PRNGKeyArray]:
    """Return a new ``Decoder``'s fields, and a key for the model's other arrays.

    Args:
        block: Class with ``init(config, *, key)``.
        config: The model.
        Vocab: Axis of the vocabulary, with padding.
        vocab_size: Size of the vocabulary, without padding.
        key: Determines the values.
        tied: Whether the head is the embedding; if not, the returned key is used by the head.
    """
    key_tokens, key_own, key_blocks = jax.random.split(key, 3)
    Embed, scale = Axis(EMBED, config.hidden_dim), config.initializer_range
    blocks = stack(config.num_layers, block, config.gradient_checkpointing)
    fields = {
        "token_embeddings": Embedding.init(Vocab, Embed, key=key_tokens, scale=scale),
        "blocks": blocks(config, key=jax.random.split(key_blocks, config.num_layers)),
        "lm_head": None if tied else Linear.init([Embed], [Vocab], key=key_own, scale=scale, use_bias=False),
        "config": config,
        "Vocab": Vocab,
        "vocab_size": vocab_size,
    }
    return fields, key_own


class Mlp(eqx.Module):
    """embed -> mlp, the activation, mlp -> embed."""

    up: Linear
    down: Linear
    activation: str = eqx.field(static=True)

    @classmethod
    def init(cls, config: Any, *, key: PRNGKeyArray, down: float, use_bias: bool = True) -> Mlp:
        """Return a new MLP.

        ``down``: standard deviation of the weights into the residual stream.
        """
        key_up, key_down = jax.random.split(key)
        Embed, Hidden = Axis(EMBED, config.hidden_dim), Axis(MLP, config.mlp_dim)
        return cls(
            Linear.init([Embed], [Hidden], key=key_up, scale=config.initializer_range, use_bias=use_bias),
            Linear.init([Hidden], [Embed], key=key_down, scale=down, use_bias=use_bias),
            config.activation_function,
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        """Map [batch, position, embed] to the same axes."""
        return self.down(activation(self.activation)(saveable(hax.auto_sharded(self.up(x)), "mlp"))).rearrange(x.axes)


def residual_deviation(config: LmConfig) -> float:
    """Return the standard deviation of new weights into the residual stream.

    See Radford et al. 2019.

    With it the variance of the stream does not grow with depth.
    """
    return config.initializer_range / math.sqrt(2 * config.num_layers)
