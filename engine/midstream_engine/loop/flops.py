"""FLOPs of the model and peak FLOP/s of the devices, for model FLOPs utilisation."""

from __future__ import annotations

from midstream_core.accelerators import find_accelerator
from midstream_core.precision import HIGHEST
from midstream_engine.config.model import LmConfig


def peak(device_kind: str, compute: str, products: str | None) -> float | None:
    """Return the peak FLOP/s of one device in a run's arithmetic; None if unknown.

    For float32 at ``highest`` it is the peak of float32 outside of the tensor cores of a GPU, and a sixth of the 16-bit
    peak of a TPU; at jax's default that of TF32, and the 16-bit peak (`midstream_core.accelerators` names the sources).

    Args:
        device_kind: jax's name of the device.
        compute: Element type of the computation: ``float32``, ``bfloat16`` or ``float16``.
        products: jax's precision for products of float32 numbers; None: the accelerator's default.
    """
    accelerator = find_accelerator(device_kind)
    if accelerator is None:
        return None
    if compute != "float32":
        return accelerator.peak_flops
    return accelerator.float32_flops if products == HIGHEST else accelerator.default_flops


def forward_flops_per_token(config: LmConfig, vocab_size: int, *, causal: bool = False) -> float:
    """Return the FLOPs of the forward pass for one token.

    ``vocab_size``: without padding.

    Two for every weight in a matrix product, and the two products of attention. There are two conventions: with all
    ``seq_len`` keys, as in Chowdhery et al., "PaLM", 2022, appendix B, or ``causal``, with half of them, as MaxText
    counts. Recomputation in the backward pass, lookups, norms and activations do not count.
    """
    query, keys = config.num_heads * config.head_size, config.kv_heads * config.head_size
    attention = config.hidden_dim * (2 * query + 2 * keys)  # q and out; k and v
    mlp = config.hidden_dim * config.mlp_dim * (3 if config.gated_mlp else 2)
    weights = config.num_layers * (attention + mlp) + config.hidden_dim * vocab_size
    keys_attended = config.seq_len / 2 if causal else config.seq_len
    return 2.0 * weights + config.num_layers * 4.0 * keys_attended * query


def flops_per_token(config: LmConfig, vocab_size: int, *, causal: bool = False) -> float:
    """Return the FLOPs of one token forward and backward.

    There are two products backward for each one forward.
    """
    return 3.0 * forward_flops_per_token(config, vocab_size, causal=causal)


def utilisation_columns(config: LmConfig, vocab_size: int) -> dict[str, float]:
    """Return the FLOPs of one token by metric, with one metric for each convention.

    A metric has these FLOPs divided by seconds and peak.
    """
    return {
        "throughput/mfu_full_attention": flops_per_token(config, vocab_size),
        "throughput/mfu_causal_attention": flops_per_token(config, vocab_size, causal=True),
    }
