"""GPT-NeoX and Pythia with named axes and stacked layers.

See Black et al. 2022; Biderman et al. 2023.
"""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import jax
from haliax import Axis, NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import NeoxConfig
from midstream_engine.models.axes import EMBED, HEAD_SIZE, HEADS
from midstream_engine.models.causal_attention import View, attend, choose_backend, scaled
from midstream_engine.models.decoder import Decoder, Mlp, frame
from midstream_engine.models.layers import LayerNorm, Linear
from midstream_engine.models.rope import Rotation
from midstream_engine.models.stacked_layers import saveable


class Attention(eqx.Module):
    """Causal self-attention: all heads in one product, a part of each head rotated."""

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
        """Map [batch, position, embed] to the same axes."""
        q, k, v = hax.unbind(saveable(hax.auto_sharded(self.qkv(x)), "qkv"), "qkv")
        backend = choose_backend(self.config, x.dtype, documents=view.segments is not None)
        return self.dense(attend(self.config, backend, scaled(rotation(q)), rotation(k), v, view)).rearrange(x.axes)


class Block(eqx.Module):
    """Block with attention and MLP, from one input or one after the other.

    x + attention(norm(x)) + mlp(norm(x)) with two norms, or x + attention(norm(x)), then x + mlp(norm(x)).
    """

    input_layernorm: LayerNorm
    attention: Attention
    post_attention_layernorm: LayerNorm
    mlp: Mlp
    config: NeoxConfig = eqx.field(static=True)

    @staticmethod
    def init(config: NeoxConfig, *, key: PRNGKeyArray) -> Block:
        key_attn, key_mlp = jax.random.split(key)
        norm = LayerNorm.init(Axis(EMBED, config.hidden_dim), config.layer_norm_epsilon)
        mlp = Mlp.init(config, key=key_mlp, down=config.initializer_range)
        return Block(norm, Attention.init(config, key=key_attn), norm, mlp, config)

    def __call__(self, x: NamedArray, view: View, rotation: Rotation) -> NamedArray:
        attended = x + self.attention(self.input_layernorm(x), view, rotation)
        source = x if self.config.use_parallel_residual else attended
        return hax.auto_sharded(attended + self.mlp(self.post_attention_layernorm(source)))


class NeoxModel(Decoder):
    """GPT-NeoX: rotary positions, LayerNorm."""

    final_layer_norm: LayerNorm

    @classmethod
    def init(cls, config: NeoxConfig, Vocab: Axis, vocab_size: int, *, key: PRNGKeyArray) -> NeoxModel:
        fields, _ = frame(Block, config, Vocab, vocab_size, key, tied=config.tie_word_embeddings)
        last = LayerNorm.init(Axis(EMBED, config.hidden_dim), config.layer_norm_epsilon)
        return cls(**fields, final_layer_norm=last)

    @property
    def _last_norm(self) -> LayerNorm:
        return self.final_layer_norm

    def _given(self, Position: Axis, keys: NamedArray | None) -> tuple[Rotation]:
        del keys  # no dropout
        return (Rotation.of(self.config.rope, Position, self.config.rotary_size),)
