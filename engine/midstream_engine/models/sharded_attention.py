"""Attention kernels on a mesh.

The compiler does not shard a kernel: each device runs it on its own part of the batch and the heads.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from haliax import NamedArray
from jax.sharding import PartitionSpec

from midstream_engine.models.axes import BATCH, HEADS, KV_HEADS
from midstream_engine.models.sharding import mesh_axes


def sharded_attention(
    kernel: Callable[..., jax.Array], q: NamedArray, k: NamedArray, v: NamedArray, segments: NamedArray | None
) -> NamedArray:
    """Run a kernel on the parts of its arguments that each device has.

    Args:
        kernel: Returns attention from the arrays of q, k, v and, if there are any, segments.
        q: [batch, position, heads, head_size].
        k: [batch, position, heads or kv_heads, head_size].
        v: [batch, position, heads or kv_heads, head_size].
        segments: int32 [batch, position].
    """
    arguments = [q.array, k.array, v.array]
    if segments is not None:
        arguments.append(segments.rearrange((BATCH, ...)).array)
    batch, heads = mesh_axes(BATCH), mesh_axes(HEADS)
    if not batch and not heads:
        return NamedArray(kernel(*arguments), q.axes)
    if heads and k.axes[2].name == KV_HEADS and mesh_axes(KV_HEADS) != heads:
        # The heads are sharded, their keys are not: give every head its own.
        copies = q.axes[2].size // k.axes[2].size
        arguments[1:3] = [jnp.repeat(array, copies, axis=2) for array in arguments[1:3]]
    spec = PartitionSpec(batch, None, heads, None)
    specs = (spec, spec, spec, PartitionSpec(batch, None))[: len(arguments)]
    return NamedArray(jax.shard_map(kernel, in_specs=specs, out_specs=spec, check_vma=False)(*arguments), q.axes)
