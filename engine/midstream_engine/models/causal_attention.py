"""Causal attention, with an implementation for each platform.

``vanilla`` is implemented on named axes and has dropout; ``xla`` and ``cudnn`` are ``jax.nn.dot_product_attention``;
``splash`` is jax's flash attention for TPUs; ``triton`` has kernels for GPUs for rows of several documents.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis, NamedArray
from jax.typing import DTypeLike

from midstream_engine.array_types import Leaf
from midstream_engine.config.model import LmConfig
from midstream_engine.models.axes import BATCH, HEAD_SIZE, HEADS, KEY_POSITION, KV_HEADS, POSITION
from midstream_engine.models.kernel_sizes import document_kernels_fit
from midstream_engine.models.layers import dropout
from midstream_engine.models.sharding import mesh_platform
from midstream_engine.models.stacked_layers import saveable

# The derivative of softmax from its results alone. Without it the exponentials are stored too: as many as the scores.
jax.config.update("jax_softmax_custom_jvp", True)

_ALIASES = {"nvte": "cudnn", "jax_flash": "xla"}
_CUDNN_HEAD = 128  # largest head size of every cuDNN flash attention, in multiples of 8
_SPLASH_BLOCK = 128  # splash processes positions in multiples of this


def choose_backend(
    config: LmConfig,
    dtype: DTypeLike,
    *,
    dropout: bool = False,
    documents: bool = False,
    platform: str | None = None,
) -> str:
    """Choose the implementation of attention.

    ``model.attn_backend`` decides, with two exceptions: dropout needs ``vanilla``, and ``xla`` replaces the kernels for
    GPUs in float32, which cuDNN lacks and in which reference losses are measured.

    Args:
        config: The model.
        dtype: Dtype of the computation.
        dropout: Whether attention has dropout.
        documents: Attention stops at the ends of documents.
        platform: Platform of the devices; None: that of the active mesh.
    """
    platform = mesh_platform() if platform is None else platform
    backend = config.attn_backend or "default"
    backend = _ALIASES.get(backend, backend)
    if dropout or (backend == "default" and config.use_flash_attention is False):
        return "vanilla"
    narrow = jnp.dtype(dtype).itemsize == 2 and not config.upcast_attn
    if backend == "default":
        if platform in ("gpu", "cuda", "rocm"):
            fits = platform != "rocm" and config.head_size % 8 == 0 and config.head_size <= _CUDNN_HEAD
            if not narrow or not fits:
                return "xla"
            return "triton" if documents and document_kernels_fit(config.seq_len, config.head_size) else "cudnn"
        if platform == "tpu":
            return "splash" if config.seq_len % _SPLASH_BLOCK == 0 else "xla"
        return "vanilla"
    if backend == "cudnn" or (backend == "triton" and platform == "gpu"):  # elsewhere triton is interpreted, for tests
        return backend if narrow else "xla"
    return backend


class View(eqx.Module):
    """Positions that each attends to: itself and those before, in its own segment."""

    segments: NamedArray | None  # int32 [batch, position]; None: one segment
    mask: NamedArray | None  # bool [(batch,) position, key_position], if the backend needs it

    @classmethod
    def of(cls, Position: Axis, segments: NamedArray | None, backend: str) -> View:
        if backend != "vanilla":
            return cls(segments, None)
        Keys = Position.alias(KEY_POSITION)
        mask = hax.arange(Position).broadcast_axis(Keys) >= hax.arange(Keys)
        if segments is not None:
            same = segments.broadcast_axis(Keys) == segments.rename({POSITION: KEY_POSITION})
            mask = same & mask
        return cls(segments, mask)


def attend(
    config: LmConfig,
    backend: str,
    q: NamedArray,
    k: NamedArray,
    v: NamedArray,
    view: View,
    *,
    rate: float = 0.0,
    keys: NamedArray | None = None,
    site: int | jax.Array = 0,
) -> NamedArray:
    """Return the attended values: batch, position, heads and head_size, in any order.

    Args:
        config: The model.
        backend: Result of :func:`choose_backend`.
        q: [batch, position, heads, head_size], after ``scaled`` where the model scales the scores.
        k: [batch, position, heads or kv_heads, head_size].
        v: [batch, position, heads or kv_heads, head_size].
        view: The positions that each position attends to.
        rate: Dropout, on ``vanilla`` alone; see ``layers.dropout``.
        keys: See ``layers.dropout``.
        site: See ``layers.dropout``.
    """
    dtype = v.dtype
    if config.upcast_attn:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    if backend == "vanilla":
        return saveable(_vanilla(q, k, v, view, rate, keys, site), "attention")
    order = (BATCH, POSITION, ..., HEAD_SIZE)
    q, k, v = q.rearrange(order), k.rearrange(order), v.astype(q.dtype).rearrange(order)
    if backend == "splash":
        from midstream_engine.models.splash import splash_attention  # loads Pallas, which only TPUs need

        block, fused = config.flash_attention_block_size, config.flash_attention_fused_backward
        return splash_attention(q, k, v, view.segments, block, fused=fused).astype(dtype)
    if backend == "triton":
        from midstream_engine.models.document_attention import document_attention  # loads Pallas

        segments = view.segments
        if segments is None:
            segments = hax.zeros((q.resolve_axis(BATCH), q.resolve_axis(POSITION)), dtype=jnp.int32)
        return document_attention(q, k, v, segments).astype(dtype)
    mask = None
    if view.segments is not None:
        segments = view.segments.rearrange((BATCH, POSITION)).array
        mask = segments[:, None, :, None] == segments[:, None, None, :]
    implementation: Any = backend
    out: Leaf = jax.nn.dot_product_attention(
        q.array, k.array, v.array, mask=mask, is_causal=True, scale=1.0, implementation=implementation
    )
    return saveable(NamedArray(out, q.axes).astype(dtype), "attention")


def _vanilla(
    q: NamedArray,
    k: NamedArray,
    v: NamedArray,
    view: View,
    rate: float,
    keys: NamedArray | None,
    site: int | jax.Array,
) -> NamedArray:
    Heads = q.resolve_axis(HEADS)
    grouped = any(axis.name == KV_HEADS for axis in k.axes)
    if grouped:
        Groups = k.resolve_axis(KV_HEADS)
        q = q.unflatten_axis(HEADS, (Groups, Axis("heads_per_group", Heads.size // Groups.size)))
    k, v = k.rename({POSITION: KEY_POSITION}), v.rename({POSITION: KEY_POSITION})
    # Positions behind the heads: the scores are then in the order in which the product makes them.
    q = q.rearrange((BATCH, ..., POSITION, HEAD_SIZE))
    assert view.mask is not None
    scores = hax.dot(q, k, axis=HEAD_SIZE).astype(jnp.float32)
    weights = hax.nn.softmax(hax.where(view.mask, scores, -1e30), KEY_POSITION).astype(v.dtype)
    weights = dropout(weights, rate, q.resolve_axis(BATCH), keys, site)
    out = hax.dot(weights, v, axis=KEY_POSITION)
    if grouped:
        out = out.flatten_axes((KV_HEADS, "heads_per_group"), HEADS)
    return out


def scaled(q: NamedArray) -> NamedArray:
    """Return ``q`` divided by the square root of ``head_size``."""
    return q * (1.0 / math.sqrt(q.axis_size(HEAD_SIZE)))
