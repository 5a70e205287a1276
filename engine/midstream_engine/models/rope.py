"""Rotary position embeddings, rotating the two halves of a head.

See Su et al., "RoFormer", 2021.
"""

from __future__ import annotations

import math

import equinox as eqx
import haliax as hax
import jax.numpy as jnp
import numpy as np
from haliax import Axis, NamedArray

from midstream_engine.config.rope import DefaultRopeConfig, Llama3RopeConfig, RopeConfig


def frequencies(config: RopeConfig, rotary_size: int) -> np.ndarray:
    """Return radians per position for each pair of numbers. float32 [rotary_size / 2].

    Scaling: linear (Chen et al., "Extending context window ... via positional interpolation", 2023) and Llama 3.1's,
    as documented for ``rope_type: llama3`` by Hugging Face.
    """
    plain = 1.0 / config.theta ** (np.arange(0, rotary_size, 2, dtype=np.float64) / rotary_size)
    if isinstance(config, DefaultRopeConfig):
        plain = plain / config.factor
    elif isinstance(config, Llama3RopeConfig):
        turns = config.original_max_position_embeddings * plain / (2 * math.pi)  # over the original context
        slide = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
        kept = np.clip(slide, 0.0, 1.0)
        plain = kept * plain + (1.0 - kept) * plain / config.factor
    else:
        raise TypeError(f"no rotary embedding for {type(config).__name__}")
    return plain.astype(np.float32)


class Rotation(eqx.Module):
    """The angles of every position, computed once for all layers."""

    cos: NamedArray  # float32 [position, rotary]
    sin: NamedArray

    @classmethod
    def of(cls, config: RopeConfig, Position: Axis, rotary_size: int) -> Rotation:
        turning = hax.named(jnp.asarray(frequencies(config, rotary_size)), Axis("rotary", rotary_size // 2))
        angles = hax.arange(Position, dtype=jnp.float32) * turning.broadcast_axis(Position)
        return cls(hax.cos(angles), hax.sin(angles))

    def __call__(self, x: NamedArray) -> NamedArray:
        """Rotate the first ``2 * rotary`` numbers of each head.

        ``x``: [..., position, heads, head_size].
        """
        half = self.cos.axis_size("rotary")
        # [position, 1, rotary]: the heads' axis is the one before the last.
        cos, sin = (table.array.astype(x.dtype)[:, None, :] for table in (self.cos, self.sin))
        first, second = x.array[..., :half], x.array[..., half : 2 * half]
        rest = x.array[..., 2 * half :]
        turned = [first * cos - second * sin, second * cos + first * sin, rest]
        return NamedArray(jnp.concatenate(turned if rest.shape[-1] else turned[:2], -1), x.axes)
