"""GPT-NeoX and Pythia (Black et al. 2022; Biderman et al. 2023) with named axes and stacked layers."""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import jax
from haliax import Axis, NamedArray
from haliax.nn import Stacked
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import NeoxConfig
from midstream_engine.models.attention import View, attend, choose_backend, scaled
from midstream_engine.models.axes import BATCH, EMBED, HEAD_SIZE, HEADS, MLP, POSITION
from midstream_engine.models.layers import Embedding, LayerNorm, Linear, activation
from midstream_engine.models.lm import LmModel
from midstream_engine.models.rope import Rotation
from midstream_engine.models.stack import fold, stack


class Attention(eqx.Module):
    """Causal self-attention with all heads in one product, a part of each head rotated."""

    qkv: Linear
    dense: Linear
    config: NeoxConfig = eqx.field(static=True)

    @classmethod
    def init(cls, config: NeoxConfig, *, key: PRNGKeyArray) -> Attention:
        key_qkv, key_dense = jax.random.split(key)
        Embed, HeadSize = Axis(EMBED, config.hidden_dim), Axis(HEAD_SIZE, config.head_size)
        Heads, scale, bias = Axis(HEADS, config.num_heads), config.initializer_range, config.attention_bias
        return cls(
            Linear.init([Embed], [Axis("qkv", 3), Heads, HeadSize], key=key_qkv, scale=scale, use_bias=bias),
            Linear.init([Heads, HeadSize], [Embed], key=key_dense, scale=scale, use_bias=bias),
            config,
        )

    def __call__(self, x: NamedArray, view: View, rotation: Rotation) -> NamedArray:
        """[batch, position, embed] -> the same."""
        q, k, v = hax.unbind(hax.auto_sharded(self.qkv(x)), "qkv")
        backend = choose_backend(self.config, x.dtype)
        return self.dense(attend(self.config, backend, scaled(rotation(q)), rotation(k), v, view)).rearrange(x.axes)


class Mlp(eqx.Module):
    """embed -> mlp, the activation, mlp -> embed."""

    up: Linear
    down: Linear
    config: NeoxConfig = eqx.field(static=True)

    @classmethod
    def init(cls, config: NeoxConfig, *, key: PRNGKeyArray) -> Mlp:
        key_up, key_down = jax.random.split(key)
        Embed, Hidden = Axis(EMBED, config.hidden_dim), Axis(MLP, config.mlp_dim)
        scale = config.initializer_range
        return cls(
            Linear.init([Embed], [Hidden], key=key_up, scale=scale),
            Linear.init([Hidden], [Embed], key=key_down, scale=scale),
            config,
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        active = activation(self.config.activation_function)
        return self.down(active(hax.auto_sharded(self.up(x)))).rearrange(x.axes)


class Block(eqx.Module):
    """x + attention(norm(x)) + mlp(norm(x)), each its norm; else x + attention(norm(x)) and then x + mlp(norm(x))."""

    input_layernorm: LayerNorm
    attention: Attention
    post_attention_layernorm: LayerNorm
    mlp: Mlp
    config: NeoxConfig = eqx.field(static=True)

    @staticmethod
    def init(config: NeoxConfig, *, key: PRNGKeyArray) -> Block:
        key_attn, key_mlp = jax.random.split(key)
        norm = LayerNorm.init(Axis(EMBED, config.hidden_dim), config.layer_norm_epsilon)
        return Block(norm, Attention.init(config, key=key_attn), norm, Mlp.init(config, key=key_mlp), config)

    def __call__(self, x: NamedArray, view: View, rotation: Rotation) -> NamedArray:
        attended = x + self.attention(self.input_layernorm(x), view, rotation)
        source = x if self.config.use_parallel_residual else attended
        return hax.auto_sharded(attended + self.mlp(self.post_attention_layernorm(source)))


class NeoxModel(LmModel):
    """Rotary positions, ``num_layers`` stacked blocks, a last norm, a head of its own or the embedding's."""

    token_embeddings: Embedding
    blocks: Stacked[Block]
    final_layer_norm: LayerNorm
    lm_head: Linear | None  # None: tied
    config: NeoxConfig = eqx.field(static=True)
    Vocab: Axis = eqx.field(static=True)
    vocab_size: int = eqx.field(static=True)

    @classmethod
    def init(cls, config: NeoxConfig, Vocab: Axis, vocab_size: int, *, key: PRNGKeyArray) -> NeoxModel:
        key_tokens, key_head, key_blocks = jax.random.split(key, 3)
        Embed, scale = Axis(EMBED, config.hidden_dim), config.initializer_range
        tied = config.tie_word_embeddings
        stacked = stack(config.num_layers, Block, config.gradient_checkpointing)
        return cls(
            token_embeddings=Embedding.init(Vocab, Embed, key=key_tokens, scale=scale),
            blocks=stacked(config, key=jax.random.split(key_blocks, config.num_layers)),
            final_layer_norm=LayerNorm.init(Embed, config.layer_norm_epsilon),
            lm_head=None if tied else Linear.init([Embed], [Vocab], key=key_head, scale=scale, use_bias=False),
            config=config,
            Vocab=Vocab,
            vocab_size=vocab_size,
        )

    def hidden(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        del keys  # no dropout
        Batch, Position = tokens.resolve_axis(BATCH), tokens.resolve_axis(POSITION)
        x = hax.auto_sharded(self.token_embeddings(tokens).rearrange((Batch, Position, ...)))
        view = View.of(Position, segments, choose_backend(self.config, x.dtype))
        rotation = Rotation.of(self.config.rope, Position, self.config.rotary_size)
        return self.final_layer_norm(fold(self.blocks, self.config.gradient_checkpointing, x, view, rotation))

    def head(self) -> NamedArray:
        return self.token_embeddings.weight if self.lm_head is None else self.lm_head.weight
