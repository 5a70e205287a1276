"""GPT-2 (Radford et al. 2019) with named axes and stacked layers."""

from __future__ import annotations

import math

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import Gpt2Config
from midstream_engine.models.axes import BATCH, EMBED, HEAD_SIZE, HEADS, POSITION
from midstream_engine.models.causal_attention import View, attend, choose_backend, scaled
from midstream_engine.models.decoder import Decoder, Mlp, frame, residual_deviation
from midstream_engine.models.layers import Embedding, LayerNorm, Linear, dropout
from midstream_engine.models.stacked_layers import saveable
from midstream_engine.models.wide_gradients import added

SITES_PER_LAYER = 3  # dropout sites: attention weights, attention output, MLP output


class Attention(eqx.Module):
    """Causal self-attention with all heads in one product."""

    qkv: Linear
    proj: Linear
    config: Gpt2Config = eqx.field(static=True)

    @classmethod
    def init(cls, config: Gpt2Config, *, key: PRNGKeyArray) -> Attention:
        key_qkv, key_proj = jax.random.split(key)
        Embed, Heads, HeadSize = _axes(config)
        scale = config.initializer_range
        return cls(
            Linear.init([Embed], [Axis("qkv", 3), Heads, HeadSize], key=key_qkv, scale=scale, use_bias=config.use_bias),
            Linear.init(
                [Heads, HeadSize], [Embed], key=key_proj, scale=residual_deviation(config), use_bias=config.use_bias
            ),
            config,
        )

    def __call__(
        self, x: NamedArray, view: View, layer: NamedArray, keys: NamedArray | None, site: jax.Array
    ) -> NamedArray:
        """Map [batch, position, embed] to the same axes."""
        q, k, v = hax.unbind(saveable(hax.auto_sharded(self.qkv(x)), "qkv"), "qkv")
        if self.config.scale_attn_by_inverse_layer_idx:
            scale = 1.0 / math.sqrt(self.config.head_size)
            q = (q * (scale / (layer.scalar() + 1).astype(jnp.float32))).astype(x.dtype)
        else:
            q = scaled(q)
        rate, drops = self.config.attn_pdrop, keys is not None and self.config.attn_pdrop > 0
        backend = choose_backend(self.config, x.dtype, dropout=drops, documents=view.segments is not None)
        out = attend(self.config, backend, q, k, v, view, rate=rate, keys=keys, site=site)
        return self.proj(out).rearrange(x.axes)


class Block(eqx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    ln_1: LayerNorm
    attn: Attention
    ln_2: LayerNorm
    mlp: Mlp
    config: Gpt2Config = eqx.field(static=True)

    @staticmethod
    def init(config: Gpt2Config, *, key: PRNGKeyArray) -> Block:
        key_attn, key_mlp = jax.random.split(key)
        Embed = _axes(config)[0]
        norm = LayerNorm.init(Embed, config.layer_norm_epsilon, config.use_bias)
        mlp = Mlp.init(config, key=key_mlp, down=residual_deviation(config), use_bias=config.use_bias)
        return Block(norm, Attention.init(config, key=key_attn), norm, mlp, config)

    def __call__(self, x: NamedArray, view: View, layer: NamedArray, keys: NamedArray | None) -> NamedArray:
        site = layer.scalar() * SITES_PER_LAYER + 1
        rate, Batch = self.config.resid_pdrop, x.resolve_axis(BATCH)
        x = x + dropout(self.attn(self.ln_1(x), view, layer, keys, site), rate, Batch, keys, site + 1)
        x = x + dropout(self.mlp(self.ln_2(x)), rate, Batch, keys, site + 2)
        return hax.auto_sharded(x)


class Gpt2Model(Decoder):
    """GPT-2: learned positions, LayerNorm; the head is the embedding."""

    position_embeddings: Embedding
    ln_f: LayerNorm

    @classmethod
    def init(cls, config: Gpt2Config, Vocab: Axis, vocab_size: int, *, key: PRNGKeyArray) -> Gpt2Model:
        fields, key_positions = frame(Block, config, Vocab, vocab_size, key, tied=True)
        Embed, Position = _axes(config)[0], Axis(POSITION, config.seq_len)
        positions = Embedding.init(Position, Embed, key=key_positions, scale=config.initializer_range / 2)
        last = LayerNorm.init(Embed, config.layer_norm_epsilon, config.use_bias)
        return cls(**fields, position_embeddings=positions, ln_f=last)

    @property
    def _last_norm(self) -> LayerNorm:
        return self.ln_f

    def _embedded(self, tokens: NamedArray, keys: NamedArray | None) -> NamedArray:
        Batch, Position = tokens.resolve_axis(BATCH), tokens.resolve_axis(POSITION)
        positions = self.position_embeddings.weight[POSITION, hax.ds(0, Position.size)]
        x = hax.auto_sharded(added(self.token_embeddings(tokens), positions).rearrange((Batch, Position, ...)))
        return dropout(x, self.config.embed_pdrop, Batch, keys, 0)

    def _given(self, Position: Axis, keys: NamedArray | None) -> tuple[NamedArray, NamedArray | None]:
        del Position  # positions are added to the embedding
        return hax.arange(self.blocks.Block), keys


def _axes(config: Gpt2Config) -> tuple[Axis, Axis, Axis]:
    """Return the axes embed, heads, head_size."""
    return (
        Axis(EMBED, config.hidden_dim),
        Axis(HEADS, config.num_heads),
        Axis(HEAD_SIZE, config.head_size),
    )
