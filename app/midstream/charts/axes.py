"""Axis ticks at round numbers, and their labels."""

from __future__ import annotations

import math
import time


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` ascending ticks, with low <= tick <= high.

    Each is 1, 2 or 5 times a power of ten.
    """
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low or count < 1:
        return [low] if math.isfinite(low) else []
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def label(value: float, step: float) -> str:
    """Format ``value`` with the decimals that the ``step`` between ticks needs."""
    if value != 0 and (abs(value) >= 1e6 or max(abs(value), step) < 1e-3):
        return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+")
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 3
    return f"{value:.{min(decimals, 6)}f}"


def step_label(value: float) -> str:
    """Format a training step: ``900``, ``12k``, ``1.25M``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3f}".rstrip("0").rstrip(".") + unit
    return f"{value:.0f}"


def percentile(values: list[float], share: float) -> float:
    """Return the value below which ``share`` (0..1) of non-empty ``values`` are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return powers of ten between ``low`` and ``high`` (both above 0).

    Multiples of them are added if there are too few.

    Falls back to `ticks` for a range that holds too few multiples.
    """
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 3), (1, 2, 5)):
        values = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if len(values) >= max(2, count // 2):
            stride = -(-len(values) // max(1, count))
            return values[::stride]
    return ticks(low, high, count)


def duration_label(value: float) -> str:
    """Format seconds since the start of a run: ``45s``, ``12m``, ``1.5h``, ``3d``."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if abs(value) >= (2 * size if unit != "m" else size):
            return f"{value / size:.2f}".rstrip("0").rstrip(".") + unit
    return f"{value:.0f}s"


def duration_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round clock times in seconds, with low <= tick <= high."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    raw = (high - low) / max(1, count)
    step = next((step for step in steps if step >= raw * 0.999), None)
    if step is None:
        return [day * 86400 for day in ticks(low / 86400, high / 86400, count)]
    return [number * float(step) for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def clock_label(value: float, step: float = 60.0) -> str:
    """Format UTC seconds as local time, such as ``14:05``.

    Seconds are added where the ``step`` between ticks needs them.
    """
    local = time.localtime(value)
    if step >= 86400:
        return time.strftime("%d %b", local)
    return time.strftime("%H:%M" if step >= 60 else "%H:%M:%S", local)


def clock_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Return (UTC seconds, label) of about ``count`` ticks at round local times.

    For each tick, low <= tick <= high.
    """
    offset = time.localtime(high).tm_gmtoff
    values = [value - offset for value in duration_ticks(low + offset, high + offset, count)]
    step = values[1] - values[0] if len(values) > 1 else 60.0
    return [(value, clock_label(value, step)) for value in values]
