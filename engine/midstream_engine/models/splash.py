"""Splash attention: the flash attention kernel that jax has for TPUs. Elsewhere it runs in interpret mode, for tests.

The compiler does not cut a kernel over devices by itself: each runs it on its own part of the batch and the heads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from midstream_engine.config.errors import ConfigError
from midstream_engine.models.axes import BATCH, HEADS, KV_HEADS

_LANES = 128  # blocks are multiples of this
_LARGEST = 512  # positions a block where nobody says: what fits every generation's memory


def block_size(positions: int, wanted: int | None) -> int:
    """Positions a block. ConfigError where ``positions`` cannot be cut into such blocks."""
    if positions % _LANES:
        raise ConfigError(
            f"model.attn_backend: splash attention needs a seq_len that is a multiple of {_LANES}, not {positions}; "
            "use xla"
        )
    if wanted is None:
        return next(size for size in (_LARGEST, 256, _LANES) if positions % size == 0)
    wanted = min(wanted, positions)
    if wanted % _LANES or positions % wanted:
        raise ConfigError(
            f"model.flash_attention_block_size: {wanted} is not a multiple of {_LANES} that divides seq_len {positions}"
        )
    return wanted


def splash_attention(
    q: NamedArray, k: NamedArray, v: NamedArray, segments: NamedArray | None, block: int | None
) -> NamedArray:
    """Causal attention [batch, position, heads, head_size] of ``q``, which is scaled already, and of ``k`` and ``v``
    [batch, position, heads or kv_heads, head_size]. ``segments`` int32 [batch, position]."""
    local = partial(_on_device, block=block_size(q.axes[1].size, block), interpret=jax.default_backend() != "tpu")
    arguments = [q.array, k.array, v.array] + ([] if segments is None else [segments.array])
    batch, heads = _cut_over(BATCH), _cut_over(HEADS)
    if batch is None and heads is None:
        return NamedArray(local(*arguments), q.axes)
    if heads is not None and k.axes[2].name == KV_HEADS and _cut_over(KV_HEADS) != heads:
        # The heads are cut, their keys are not: give every head its own.
        copies = q.axes[2].size // k.axes[2].size
        arguments[1:3] = [jnp.repeat(array, copies, axis=2) for array in arguments[1:3]]
    spec = PartitionSpec(batch, None, heads, None)
    specs = (spec, spec, spec, PartitionSpec(batch, None))[: len(arguments)]
    return NamedArray(jax.shard_map(local, in_specs=specs, out_specs=spec, check_vma=False)(*arguments), q.axes)


def _on_device(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None, *, block: int, interpret: bool
) -> jax.Array:
    positions, heads = q.shape[1], q.shape[2]
    run = kernel.make_splash_mha(
        masks.MultiHeadMask([masks.CausalMask((positions, positions))] * heads),
        block_sizes=kernel.BlockSizes(
            block_q=block, block_kv=block, block_kv_compute=block,
            block_q_dkv=block, block_kv_dkv=block, block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block,
        ),
        head_shards=1, q_seq_shards=1, interpret=interpret,
    )  # fmt: skip

    def one(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> Any:
        ids = None if segments is None else kernel.SegmentIds(segments, segments)
        return run(q, k, v, segment_ids=ids)

    in_axes = (0, 0, 0, None if segments is None else 0)
    out = jax.vmap(one, in_axes)(q.swapaxes(1, 2), k.swapaxes(1, 2), v.swapaxes(1, 2), segments)
    return out.swapaxes(1, 2).astype(q.dtype)


def _cut_over(axis: str) -> str | tuple[str, ...] | None:
    """The mesh axes that cut a named axis of activations; None for none, or where nothing is cut."""
    names = hax.partitioning.physical_axis_name(axis)
    if names is None or (hax.partitioning.physical_axis_size(axis) or 1) == 1:
        return None
    return names if isinstance(names, str) else tuple(names)
