"""GPT-2 (Radford et al. 2019) with named axes and stacked layers; the names of the axes are in ``models.axes``."""

from __future__ import annotations

import math

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from haliax.nn import Stacked
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import Gpt2Config
from midstream_engine.models.attention import View, attend, choose_backend, scaled
from midstream_engine.models.axes import BATCH, EMBED, HEAD_SIZE, HEADS, MLP, POSITION
from midstream_engine.models.layers import Embedding, LayerNorm, Linear, activation, dropout
from midstream_engine.models.lm import LmModel
from midstream_engine.models.stack import fold, stack

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
            # Residual projections start smaller, so that the residual stream's variance does not grow with depth.
            Linear.init(
                [Heads, HeadSize], [Embed], key=key_proj,
                scale=scale / math.sqrt(2 * config.num_layers), use_bias=config.use_bias,
            ),
            config,
        )  # fmt: skip

    def __call__(
        self, x: NamedArray, view: View, layer: NamedArray, keys: NamedArray | None, site: jax.Array
    ) -> NamedArray:
        """[batch, position, embed] -> the same."""
        q, k, v = hax.unbind(hax.auto_sharded(self.qkv(x)), "qkv")
        if self.config.scale_attn_by_inverse_layer_idx:
            scale = 1.0 / math.sqrt(self.config.head_size)
            q = (q * (scale / (layer.scalar() + 1).astype(jnp.float32))).astype(x.dtype)
        else:
            q = scaled(q)
        rate, drops = self.config.attn_pdrop, keys is not None and self.config.attn_pdrop > 0
        backend = choose_backend(self.config, x.dtype, dropout=drops)
        out = attend(self.config, backend, q, k, v, view, rate=rate, keys=keys, site=site)
        return self.proj(out).rearrange(x.axes)


class Mlp(eqx.Module):
    """embed -> mlp, the activation, mlp -> embed."""

    up: Linear
    down: Linear
    config: Gpt2Config = eqx.field(static=True)

    @classmethod
    def init(cls, config: Gpt2Config, *, key: PRNGKeyArray) -> Mlp:
        key_up, key_down = jax.random.split(key)
        Embed, Hidden = _axes(config)[0], Axis(MLP, config.mlp_dim)
        scale = config.initializer_range
        down = scale / math.sqrt(2 * config.num_layers)
        return cls(
            Linear.init([Embed], [Hidden], key=key_up, scale=scale, use_bias=config.use_bias),
            Linear.init([Hidden], [Embed], key=key_down, scale=down, use_bias=config.use_bias),
            config,
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        active = activation(self.config.activation_function)
        return self.down(active(hax.auto_sharded(self.up(x)))).rearrange(x.axes)


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
        return Block(norm, Attention.init(config, key=key_attn), norm, Mlp.init(config, key=key_mlp), config)

    def __call__(self, x: NamedArray, view: View, layer: NamedArray, keys: NamedArray | None) -> NamedArray:
        site = layer.scalar() * SITES_PER_LAYER + 1
        rate, Batch = self.config.resid_pdrop, x.resolve_axis(BATCH)
        x = x + dropout(self.attn(self.ln_1(x), view, layer, keys, site), rate, Batch, keys, site + 1)
        x = x + dropout(self.mlp(self.ln_2(x)), rate, Batch, keys, site + 2)
        return hax.auto_sharded(x)


class Gpt2Model(LmModel):
    """Tied embeddings, learned positions, ``num_layers`` stacked blocks, a last norm."""

    token_embeddings: Embedding
    position_embeddings: Embedding
    blocks: Stacked[Block]
    ln_f: LayerNorm
    config: Gpt2Config = eqx.field(static=True)
    Vocab: Axis = eqx.field(static=True)
    vocab_size: int = eqx.field(static=True)

    @classmethod
    def init(cls, config: Gpt2Config, Vocab: Axis, vocab_size: int, *, key: PRNGKeyArray) -> Gpt2Model:
        key_tokens, key_positions, key_blocks = jax.random.split(key, 3)
        Embed, scale = _axes(config)[0], config.initializer_range
        stacked = stack(config.num_layers, Block, config.gradient_checkpointing)
        return cls(
            token_embeddings=Embedding.init(Vocab, Embed, key=key_tokens, scale=scale),
            position_embeddings=Embedding.init(
                Axis(POSITION, config.seq_len), Embed, key=key_positions, scale=scale / 2
            ),
            blocks=stacked(config, key=jax.random.split(key_blocks, config.num_layers)),
            ln_f=LayerNorm.init(Embed, config.layer_norm_epsilon, config.use_bias),
            config=config,
            Vocab=Vocab,
            vocab_size=vocab_size,
        )

    def hidden(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        Batch, Position = tokens.resolve_axis(BATCH), tokens.resolve_axis(POSITION)
        positions = self.position_embeddings.weight[POSITION, hax.ds(0, Position.size)]
        x = hax.auto_sharded((self.token_embeddings(tokens) + positions).rearrange((Batch, Position, ...)))
        x = dropout(x, self.config.embed_pdrop, Batch, keys, 0)
        drops = keys is not None and self.config.attn_pdrop > 0
        view = View.of(Position, segments, choose_backend(self.config, x.dtype, dropout=drops))
        x = fold(self.blocks, self.config.gradient_checkpointing, x, view, hax.arange(self.blocks.Block), keys)
        return self.ln_f(x)

    def head(self) -> NamedArray:
        return self.token_embeddings.weight


def _axes(config: Gpt2Config) -> tuple[Axis, Axis, Axis]:
    """embed, heads, head_size."""
    return (
        Axis(EMBED, config.hidden_dim),
        Axis(HEADS, config.num_heads),
        Axis(HEAD_SIZE, config.head_size),
    )
