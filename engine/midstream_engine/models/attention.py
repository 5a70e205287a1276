"""Causal attention, on whichever implementation suits the platform.

``vanilla`` is written out on named axes and is the one with dropout; ``xla`` and ``cudnn`` are
``jax.nn.dot_product_attention``; ``splash`` is the flash attention that jax has for TPUs.
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

from midstream_engine.config.model import LmConfig
from midstream_engine.models.axes import BATCH, HEAD_SIZE, HEADS, KEY_POSITION, KV_HEADS, POSITION
from midstream_engine.models.layers import dropout

_ALIASES = {"nvte": "cudnn", "jax_flash": "xla"}
_CUDNN_HEAD = 128  # numbers a head that every cuDNN flash attention takes, in multiples of 8
_SPLASH_BLOCK = 128  # splash walks the positions in multiples of this


def choose_backend(config: LmConfig, dtype: DTypeLike, *, dropout: bool = False, platform: str | None = None) -> str:
    """Which implementation computes attention in ``dtype`` on ``platform`` (None: the one at hand).

    ``model.attn_backend`` decides, but for what cannot be: dropout needs ``vanilla``, and cuDNN has no float32, in
    which the witness is measured, so that ``xla`` takes its place there.
    """
    platform = jax.default_backend() if platform is None else platform
    wanted = config.attn_backend or "default"
    wanted = _ALIASES.get(wanted, wanted)
    if dropout or (wanted == "default" and config.use_flash_attention is False):
        return "vanilla"
    narrow = jnp.dtype(dtype).itemsize == 2 and not config.upcast_attn
    if wanted == "default":
        if platform in ("gpu", "cuda", "rocm"):
            fits = platform != "rocm" and config.head_size % 8 == 0 and config.head_size <= _CUDNN_HEAD
            return "cudnn" if narrow and fits else "xla"
        if platform == "tpu":
            return "splash" if config.seq_len % _SPLASH_BLOCK == 0 else "xla"
        return "vanilla"
    return "xla" if wanted == "cudnn" and not narrow else wanted


class View(eqx.Module):
    """What each position may look at: itself, what is before it, and of that its own segment alone."""

    segments: NamedArray | None  # int32 [batch, position]; None: one segment
    mask: NamedArray | None  # bool [(batch,) position, key_position], where the backend wants it written out

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
    """The attended values: batch, position, heads and head_size, in whatever order.

    ``q`` [batch, position, heads, head_size] is already divided by the square root of ``head_size``; ``k`` and ``v``
    [batch, position, heads or kv_heads, head_size]. ``rate``, ``keys`` and ``site``: dropout, as ``layers.dropout``
    has it, on ``vanilla`` alone.
    """
    dtype = v.dtype
    if config.upcast_attn:
        q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    if backend == "vanilla":
        return _vanilla(q, k, v, view, rate, keys, site)
    order = (BATCH, POSITION, ..., HEAD_SIZE)
    q, k, v = q.rearrange(order), k.rearrange(order), v.astype(q.dtype).rearrange(order)
    if backend == "splash":
        from midstream_engine.models.splash import splash_attention

        return splash_attention(q, k, v, view.segments, config.flash_attention_block_size).astype(dtype)
    mask = None
    if view.segments is not None:
        segments = view.segments.rearrange((BATCH, POSITION)).array
        mask = segments[:, None, :, None] == segments[:, None, None, :]
    implementation: Any = backend
    out: Any = jax.nn.dot_product_attention(
        q.array, k.array, v.array, mask=mask, is_causal=True, scale=1.0, implementation=implementation
    )
    return NamedArray(out, q.axes).astype(dtype)


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
    assert view.mask is not None
    scores = hax.dot(q, k, axis=HEAD_SIZE).astype(jnp.float32)
    weights = hax.nn.softmax(hax.where(view.mask, scores, -1e30), KEY_POSITION).astype(v.dtype)
    weights = dropout(weights, rate, q.resolve_axis(BATCH), keys, site)
    out = hax.dot(weights, v, axis=KEY_POSITION)
    if grouped:
        out = out.flatten_axes((KV_HEADS, "heads_per_group"), HEADS)
    return out


def scaled(q: NamedArray) -> NamedArray:
    """``q`` divided by the square root of ``head_size``."""
    return q * (1.0 / math.sqrt(q.axis_size(HEAD_SIZE)))
