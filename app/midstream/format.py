"""Numbers, sizes, durations and times as texts, for both faces and reports."""

from __future__ import annotations

import math
import textwrap
import time

NONE = "-"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")  # in any locale


def size(count: float | None) -> str:
    """Format bytes with a decimal unit: ``14.2 GB``."""
    if count is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def short(value: float | None) -> str:
    """Format a number in at most five characters: ``940``, ``12.3k``, ``1.2M``."""
    if value is None or not math.isfinite(value):
        return NONE if value is None else str(value)
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            return f"{value:.0f}{unit}" if unit == "" or abs(value) >= 99.95 else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def grouped(value: int | None) -> str:
    """Format an integer with separators: ``19,040``."""
    return NONE if value is None else f"{value:,}"


def loss(value: float | None) -> str:
    """Format a loss with four decimals; NaN and infinity as such."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def small(value: float | None) -> str:
    """Format a learning rate: ``3.0e-04``."""
    return NONE if value is None else f"{value:.1e}"


def percent(share: float | None) -> str:
    """Format a share of 0..1 as ``64%``."""
    return NONE if share is None else f"{100 * share:.0f}%"


def seconds(value: float | None) -> str:
    """Format a duration: ``0.4s``, ``12s``, ``3m20``, ``2h05``, ``4d``."""
    return NONE if value is None else duration(value)


def duration(seconds: float) -> str:
    """Format a duration: ``0.4s``, ``12s``, ``3m20``, ``2h05``, ``4d``; else ``-``."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 99.5:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds) // 60}m{int(seconds) % 60:02d}"
    if seconds < 172800:
        return f"{int(seconds) // 3600}h{int(seconds) % 3600 // 60:02d}"
    return f"{int(seconds) // 86400}d"


def estimate(seconds: float) -> str:
    """Format an estimated duration, rounded: ``12s``, ``5m``, ``2h05``."""
    if 99.5 <= seconds < 3570:
        return f"{round(seconds / 60)}m"
    return f"{max(1, round(seconds))}s" if seconds < 99.5 else duration(seconds)


def age(value: float | None) -> str:
    """Format an age in one unit: ``3s``, ``12m``, ``5h``, ``4d``."""
    if value is None:
        return NONE
    value = max(0.0, value)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * length:
            return f"{int(value // length)}{unit}"
    return f"{int(value)}s"


def age_since(then: float | None, now: float | None = None) -> str:
    """Format the age of the time ``then``, as `age` does; ``-`` if it is unknown."""
    return NONE if not then else age((time.time() if now is None else now) - then)


def money(amount: float) -> str:
    """Format with four significant digits, at least two decimals, no exponent.

    Examples: ``12.00``, ``0.0003214``.
    """
    places = 2 if amount <= 0 else max(2, 3 - math.floor(math.log10(amount)))
    return f"{amount:.{places}f}"


def moment(value: float | None, now: float) -> str:
    """Format a time by its distance from ``now``.

    A time of today is ``10:31``, one of the last half year ``Nov 20 10:31``, others are ``2025-11-20``.
    """
    if value is None:
        return NONE
    try:
        then, today = time.localtime(value), time.localtime(now)
    except (OverflowError, OSError, ValueError):
        return NONE
    if then[:3] == today[:3]:
        return time.strftime("%H:%M", then)
    if abs(now - value) < 183 * 86400:
        return f"{MONTHS[then.tm_mon - 1]} {then.tm_mday:2} {time.strftime('%H:%M', then)}"
    return time.strftime("%Y-%m-%d", then)


def quantity(value: float | None, unit: str) -> str:
    """Format a number in its unit with three digits.

    Examples: ``93%``, ``61.2 GB``, ``0.13 MB/s``.
    """
    if value is None or not math.isfinite(value):
        return NONE
    if unit == "%":
        return f"{value:.0f}%"
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{decimals}f} {unit}"


def digest(value: str | None, length: int = 12) -> str:
    """Return the first ``length`` characters of a digest."""
    return value[:length] if value else NONE


def folded(text: str, width: int, indent: int) -> str:
    """Wrap text to ``width`` cells; indent lines after the first by ``indent`` cells."""
    lines = textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)
