"""Splash attention: jax's flash attention kernel for TPUs.

On other platforms the kernel runs in interpret mode, for tests.
"""

from __future__ import annotations

from functools import partial

import jax
from haliax import NamedArray
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from midstream_engine.array_types import PyTree
from midstream_engine.config.errors import ConfigError
from midstream_engine.models.sharded_attention import sharded_attention
from midstream_engine.models.sharding import mesh_platform

_LANES = 128  # blocks are multiples of this
# Default positions per block: what the compilers for v5e and v6e fit in a kernel's 16 MiB of vector memory, in 16 bits
# (tried with heads of 64 and 128). 2048 does not fit.
_MAX_BLOCK, _MAX_WIDE_BLOCK, _HEAD = 1024, 512, 128


def block_size(positions: int, limit: int | None, *, narrow: bool = False) -> int:
    """Return the positions per block.

    Args:
        positions: Of a sequence.
        limit: ``model.flash_attention_block_size``.
        narrow: Whether numbers have 16 bits, and heads at most 128 of them.

    Raises:
        ConfigError: Such blocks do not divide ``positions``.
    """
    if positions % _LANES:
        raise ConfigError(
            f"model.attn_backend: splash attention needs a seq_len that is a multiple of {_LANES}, not {positions}; "
            "use xla"
        )
    if limit is None:
        sizes = (_MAX_BLOCK if narrow else _MAX_WIDE_BLOCK, _MAX_WIDE_BLOCK, 256, _LANES)
        return next(size for size in sizes if positions % size == 0)
    limit = min(limit, positions)
    if limit % _LANES or positions % limit:
        raise ConfigError(
            f"model.flash_attention_block_size: {limit} is not a multiple of {_LANES} that divides seq_len {positions}"
        )
    return limit


def splash_attention(
    q: NamedArray, k: NamedArray, v: NamedArray, segments: NamedArray | None, block: int | None, *, fused: bool = False
) -> NamedArray:
    """Return causal attention [batch, position, heads, head_size].

    Args:
        q: [batch, position, heads, head_size], already scaled.
        k: [batch, position, heads or kv_heads, head_size].
        v: [batch, position, heads or kv_heads, head_size].
        segments: int32 [batch, position].
        block: Positions per block; None: the default.
        fused: ``model.flash_attention_fused_backward``.
    """
    narrow = q.dtype.itemsize == 2 and q.axes[3].size <= _HEAD
    size = block_size(q.axes[1].size, block, narrow=narrow)
    local = partial(_on_device, block=size, fused=fused, interpret=mesh_platform() != "tpu")
    return sharded_attention(local, q, k, v, segments)


def _on_device(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array | None = None,
    *,
    block: int,
    fused: bool,
    interpret: bool,
) -> jax.Array:
    positions, heads = q.shape[1], q.shape[2]
    of_queries = None if fused else block  # a kernel of its own has blocks of its own
    run = kernel.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((positions, positions))] * heads),
        block_sizes=kernel.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block,
            block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block,
            block_q_dq=of_queries, block_kv_dq=of_queries, use_fused_bwd_kernel=fused,
        ),
        head_shards=1, q_seq_shards=1, interpret=interpret, residual_checkpoint_name="attention",
    )  # fmt: skip

    def example(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> PyTree:
        ids = None if segments is None else kernel.SegmentIds(segments, segments)
        return run(q, k, v, segment_ids=ids)

    in_axes = (0, 0, 0, None if segments is None else 0)
    out = jax.vmap(example, in_axes)(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2), segments)
    return out.swapaxes(1, 2).astype(q.dtype)
