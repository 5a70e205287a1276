"""Model FLOPs and what devices can do, for model FLOPs utilisation."""

from __future__ import annotations

from midstream_engine.config.model import LmConfig

# Dense 16-bit peak of one jax device, FLOP/s, from the makers' data sheets, by a part of ``device_kind``. The longer
# name wins. A device of TPU v2 and v3 is one core, half a chip.
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
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def peak(device_kind: str) -> float | None:
    """FLOP/s of one device in 16-bit arithmetic; None where it is not known."""
    found = [name for name in PEAKS if name in device_kind]
    return PEAKS[max(found, key=len)] if found else None


def training_flops_per_token(config: LmConfig, parameters: int) -> float:
    """Forward and backward: 6 for each parameter in a product, and the attention products over ``seq_len`` keys
    (Chowdhery et al., "PaLM", 2022, appendix B)."""
    return 6.0 * parameters + 12.0 * config.num_layers * config.hidden_dim * config.seq_len
