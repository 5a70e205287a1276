"""GPT-2 (Radford et al. 2019) with named axes and stacked layers.

Axes: ``batch``, ``position`` (``key_position`` on the attended side), ``embed``, ``heads``, ``head_size``, ``mlp``,
``vocab``, ``layers``.
"""

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
from midstream_engine.models.layers import Embedding, LayerNorm, Linear, dropout
from midstream_engine.models.lm import BATCH, POSITION, LmModel

KEY_POSITION = "key_position"
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
        self, x: NamedArray, mask: NamedArray, layer: NamedArray, keys: NamedArray | None, site: jax.Array
    ) -> NamedArray:
        """[batch, position, embed] -> the same."""
        q, k, v = hax.unbind(hax.auto_sharded(self.qkv(x)), "qkv")
        k, v = k.rename({POSITION: KEY_POSITION}), v.rename({POSITION: KEY_POSITION})
        scale = 1.0 / math.sqrt(self.config.hidden_dim // self.config.num_heads)
        if self.config.scale_attn_by_inverse_layer_idx:
            q = (q * (scale / (layer.scalar() + 1).astype(jnp.float32))).astype(x.dtype)
        else:
            q = q * scale
        scores = hax.dot(q, k, axis="head_size").astype(jnp.float32)
        weights = hax.nn.softmax(hax.where(mask, scores, -1e30), KEY_POSITION).astype(x.dtype)
        weights = dropout(weights, self.config.attn_pdrop, x.resolve_axis(BATCH), keys, site)
        return self.proj(hax.dot(weights, v, axis=KEY_POSITION)).rearrange(x.axes)


class Mlp(eqx.Module):
    """embed -> mlp, tanh GELU, mlp -> embed."""

    up: Linear
    down: Linear

    @classmethod
    def init(cls, config: Gpt2Config, *, key: PRNGKeyArray) -> Mlp:
        key_up, key_down = jax.random.split(key)
        Embed, Hidden = _axes(config)[0], Axis("mlp", config.hidden_dim * config.mlp_scale)
        scale = config.initializer_range
        down = scale / math.sqrt(2 * config.num_layers)
        return cls(
            Linear.init([Embed], [Hidden], key=key_up, scale=scale, use_bias=config.use_bias),
            Linear.init([Hidden], [Embed], key=key_down, scale=down, use_bias=config.use_bias),
        )

    def __call__(self, x: NamedArray) -> NamedArray:
        return self.down(hax.nn.gelu(hax.auto_sharded(self.up(x)), approximate=True)).rearrange(x.axes)


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

    def __call__(self, x: NamedArray, mask: NamedArray, layer: NamedArray, keys: NamedArray | None) -> NamedArray:
        site = layer.scalar() * SITES_PER_LAYER + 1
        rate, Batch = self.config.resid_pdrop, x.resolve_axis(BATCH)
        x = x + dropout(self.attn(self.ln_1(x), mask, layer, keys, site), rate, Batch, keys, site + 1)
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
        Embed, Layers = _axes(config)[0], Axis("layers", config.num_layers)
        scale = config.initializer_range
        stacked = Stacked.init(Layers, Block, gradient_checkpointing=config.gradient_checkpointing)
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

    def __call__(self, tokens: NamedArray, segments: NamedArray | None, keys: NamedArray | None) -> NamedArray:
        Batch, Position = tokens.resolve_axis(BATCH), tokens.resolve_axis(POSITION)
        positions = self.position_embeddings.weight[POSITION, hax.ds(0, Position.size)]
        x = hax.auto_sharded((self.token_embeddings(tokens) + positions).rearrange((Batch, Position, ...)))
        x = dropout(x, self.config.embed_pdrop, Batch, keys, 0)
        mask = _attention_mask(Position, segments)
        x = self.blocks.fold(x, mask, hax.arange(self.blocks.Block), keys)
        return hax.dot(self.ln_f(x), self.token_embeddings.weight, axis="embed")

    def decayed(self) -> Gpt2Model:
        def mark(path: tuple, leaf: NamedArray) -> bool:
            del leaf
            names = [getattr(part, "name", "") for part in path]
            return names[-1] == "weight" and not any("embeddings" in name or name.startswith("ln_") for name in names)

        return jax.tree_util.tree_map_with_path(mark, self, is_leaf=lambda node: isinstance(node, NamedArray))


def _axes(config: Gpt2Config) -> tuple[Axis, Axis, Axis]:
    """embed, heads, head_size."""
    return (
        Axis("embed", config.hidden_dim),
        Axis("heads", config.num_heads),
        Axis("head_size", config.hidden_dim // config.num_heads),
    )


def _attention_mask(Position: Axis, segments: NamedArray | None) -> NamedArray:
    """True where a position may look: not ahead, and not across segments. bool [(batch,) position, key_position]."""
    Keys = Position.alias(KEY_POSITION)
    causal = hax.arange(Position).broadcast_axis(Keys) >= hax.arange(Keys)
    if segments is None:
        return causal
    same = segments.broadcast_axis(Keys) == segments.rename({POSITION: KEY_POSITION})
    return same & causal
