"""Model FLOPs and what devices can do, for model FLOPs utilisation."""

from __future__ import annotations

import re

from midstream_engine.config.model import LmConfig

# Dense 16-bit peak of one jax device, FLOP/s, from the makers' data sheets, by a part of ``device_kind``. The longer
# name wins. A device of TPU v2, v3 and 7x is one core, half a chip.
PEAKS = {
    "A100": 312e12,
    "H100": 989.5e12,
    "H100 PCIe": 756.5e12,
    "H200": 989.5e12,
    "L4": 121e12,
    "V100": 125e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "TPU7x": 1153.5e12,
}


def peak(device_kind: str) -> float | None:
    """FLOP/s of one device in 16-bit arithmetic; None where it is not known."""
    # As whole words: an L40 is no L4, and a GH200 no H200.
    found = [name for name in PEAKS if re.search(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", device_kind)]
    return PEAKS[max(found, key=len)] if found else None


def forward_flops_per_token(config: LmConfig, vocab_size: int) -> float:
    """Two for every weight in a product, and the two products of attention with all ``seq_len`` keys.

    As in Chowdhery et al., "PaLM", 2022, appendix B: the causal mask is not subtracted, and what is computed again in
    the backward pass, lookups, norms and activations do not count. ``vocab_size``: without padding.
    """
    query, keys = config.num_heads * config.head_size, config.kv_heads * config.head_size
    attention = config.hidden_dim * (2 * query + 2 * keys)  # q and out; k and v
    mlp = config.hidden_dim * config.mlp_dim * (3 if config.gated_mlp else 2)
    weights = config.num_layers * (attention + mlp) + config.hidden_dim * vocab_size
    return 2.0 * weights + config.num_layers * 4.0 * config.seq_len * query


def flops_per_token(config: LmConfig, vocab_size: int) -> float:
    """Forward and backward; the backward pass is two products for each of the forward pass."""
    return 3.0 * forward_flops_per_token(config, vocab_size)
