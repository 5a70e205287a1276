"""Llama 2 and 3 with named axes and stacked layers.

See Touvron et al. 2023; Llama team 2024.
"""

from __future__ import annotations

import equinox as eqx
import haliax as hax
import jax
from haliax import Axis, NamedArray
from jaxtyping import PRNGKeyArray

from midstream_engine.config.model import LlamaConfig
from midstream_engine.models.axes import EMBED, HEAD_SIZE, HEADS, KV_HEADS, MLP
from midstream_engine.models.causal_attention import View, attend, choose_backend, scaled
from midstream_engine.models.decoder import Decoder, frame
from midstream_engine.models.layers import Linear, RmsNorm, activation
from midstream_engine.models.rope import Rotation
from midstream_engine.models.stacked_layers import saveable


class Attention(eqx.Module):
    """Causal self-attention in which groups of query heads share keys and values.

    See Ainslie et al. 2023.
    """

    q_proj: Linear
    k_proj: Linear
    v_proj: Linear
    o_proj: Linear
    config: LlamaConfig = eqx.field(static=True)

    @classmethod
    def init(cls, config: LlamaConfig, *, key: PRNGKeyArray) -> Attention:
        keys = jax.random.split(key, 4)
        Embed, HeadSize = Axis(EMBED, config.hidden_dim), Axis(HEAD_SIZE, config.head_size)
        Heads, KvHeads = Axis(HEADS, config.num_heads), Axis(KV_HEADS, config.num_kv_heads)
        ends = [([Embed], [Heads, HeadSize]), ([Embed], [KvHeads, HeadSize])]
        ends += [([Embed], [KvHeads, HeadSize]), ([Heads, HeadSize], [Embed])]
        scale, bias = config.initializer_range, config.has_attention_bias
        q, k, v, o = (
            Linear.init(In, Out, key=subkey, scale=scale, use_bias=bias)
            for (In, Out), subkey in zip(ends, keys, strict=True)
        )
        return cls(q, k, v, o, config)

    def __call__(self, x: NamedArray, view: View, rotation: Rotation) -> NamedArray:
        """Map [batch, position, embed] to the same axes."""
        q = saveable(rotation(hax.auto_sharded(self.q_proj(x))), "qkv")
        k = saveable(rotation(hax.auto_sharded(self.k_proj(x))), "qkv")
        v = saveable(hax.auto_sharded(self.v_proj(x)), "qkv")
        backend = choose_backend(self.config, x.dtype, documents=view.segments is not None)
        out = attend(self.config, backend, scaled(q) if self.config.scale_attention else q, k, v, view)
        return self.o_proj(out).rearrange(x.axes)


class GatedMlp(eqx.Module):
    """Gated MLP: down(activation(gate) * up).

    See Shazeer, "GLU variants improve transformer", 2020.
    """

    gate_proj: Linear
    up_proj: Linear
    down_proj: Linear
    config: LlamaConfig = eqx.field(static=True)

    @classmethod
    def init(cls, config: LlamaConfig, *, key: PRNGKeyArray) -> GatedMlp:
        keys = jax.random.split(key, 3)
        Embed, Hidden = Axis(EMBED, config.hidden_dim), Axis(MLP, config.intermediate_dim)
        ends = [([Embed], [Hidden]), ([Embed], [Hidden]), ([Hidden], [Embed])]
        scale, bias = config.initializer_range, config.has_mlp_bias
        gate, up, down = (
            Linear.init(In, Out, key=subkey, scale=scale, use_bias=bias)
            for (In, Out), subkey in zip(ends, keys, strict=True)
        )
        return cls(gate, up, down, config)

    def __call__(self, x: NamedArray) -> NamedArray:
        active = activation(self.config.activation_function)
        gate = saveable(hax.auto_sharded(self.gate_proj(x)), "mlp")
        inner = active(gate) * saveable(hax.auto_sharded(self.up_proj(x)), "mlp")
        return self.down_proj(inner).rearrange(x.axes)


class Block(eqx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    input_layernorm: RmsNorm
    self_attn: Attention
    post_attention_layernorm: RmsNorm
    mlp: GatedMlp

    @staticmethod
    def init(config: LlamaConfig, *, key: PRNGKeyArray) -> Block:
        key_attn, key_mlp = jax.random.split(key)
        norm = _norm(config)
        return Block(norm, Attention.init(config, key=key_attn), norm, GatedMlp.init(config, key=key_mlp))

    def __call__(self, x: NamedArray, view: View, rotation: Rotation) -> NamedArray:
        x = x + self.self_attn(self.input_layernorm(x), view, rotation)
        return hax.auto_sharded(x + self.mlp(self.post_attention_layernorm(x)))


class LlamaModel(Decoder):
    """Llama: rotary positions, RMSNorm."""

    norm: RmsNorm

    @classmethod
    def init(cls, config: LlamaConfig, Vocab: Axis, vocab_size: int, *, key: PRNGKeyArray) -> LlamaModel:
        fields, _ = frame(Block, config, Vocab, vocab_size, key, tied=config.tie_word_embeddings)
        return cls(**fields, norm=_norm(config))

    @property
    def _last_norm(self) -> RmsNorm:
        return self.norm

    def _given(self, Position: Axis, keys: NamedArray | None) -> tuple[Rotation]:
        del keys  # Llama has no dropout
        return (Rotation.of(self.config.rope, Position, self.config.head_size),)


def _norm(config: LlamaConfig) -> RmsNorm:
    axis = Axis(EMBED, config.hidden_dim)
    return RmsNorm.init(
        axis, config.layer_norm_epsilon, config.use_layer_norm_weight, outside=config.epsilon_outside_root
    )
