"""Ticks at round numbers, and the labels that stand there."""

from __future__ import annotations

import math


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers (1, 2 or 5 times a power of ten) with low <= tick <= high, ascending."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or count < 1:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def label(value: float, step: float) -> str:
    """``value`` with as many decimals as ``step`` between ticks needs."""
    if value != 0 and (abs(value) >= 1e6 or max(abs(value), step) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 3
    return f"{value:.{min(decimals, 6)}f}"


def step_label(value: float) -> str:
    """A training step: ``900``, ``12k``, ``1.25M``."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3f}".rstrip("0").rstrip(".") + unit
    return f"{value:.0f}"


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` (0..1) of the values lie; ``values`` must not be empty."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]
