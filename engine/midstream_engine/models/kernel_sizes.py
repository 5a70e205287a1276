"""Sizes for which there are kernels of attention for GPUs within documents."""

from __future__ import annotations

BLOCK = 16  # positions are a multiple of it: the least that a product of the matrix units has
HEADS = (16, 32, 64, 128)  # sizes of a head


def document_kernels_fit(positions: int, head_size: int) -> bool:
    """Return whether kernels exist for this number of positions and this head size."""
    return positions % BLOCK == 0 and head_size in HEADS
