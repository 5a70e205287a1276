"""Numbers for people: short, aligned, with their units."""

from __future__ import annotations

import math
import textwrap

NONE = "-"


def size(count: float | None) -> str:
    """Bytes with a decimal unit: ``14.2 GB``."""
    if count is None:
        return NONE
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def short(value: float | None) -> str:
    """A number in at most five characters: ``940``, ``12.3k``, ``1.2M``."""
    if value is None or not math.isfinite(value):
        return NONE if value is None else str(value)
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            return f"{value:.0f}{unit}" if unit == "" or abs(value) >= 99.95 else f"{value:.1f}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def grouped(value: int | None) -> str:
    """``19,040``."""
    return NONE if value is None else f"{value:,}"


def loss(value: float | None) -> str:
    """Four decimals; a not-a-number is shown as one."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.3g}"


def small(value: float | None) -> str:
    """A learning rate: ``3.0e-04``."""
    return NONE if value is None else f"{value:.1e}"


def percent(share: float | None) -> str:
    """0..1 as ``64%``."""
    return NONE if share is None else f"{100 * share:.0f}%"


def seconds(value: float | None) -> str:
    """A duration: ``0.4s``, ``12s``, ``3m20``, ``2h05``, ``4d``."""
    if value is None:
        return NONE
    if value < 9.95:
        return f"{max(0.0, value):.1f}s"
    if value < 99.5:
        return f"{value:.0f}s"
    if value < 3600:
        return f"{int(value) // 60}m{int(value) % 60:02d}"
    if value < 172800:
        return f"{int(value) // 3600}h{int(value) % 3600 // 60:02d}"
    return f"{int(value) // 86400}d"


def age(value: float | None) -> str:
    """How old something is, in whole units: ``3s``, ``12m``, ``5h``, ``4d``."""
    if value is None:
        return NONE
    value = max(0.0, value)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= 2 * length:
            return f"{int(value // length)}{unit}"
    return f"{int(value)}s"


def digest(value: str | None, length: int = 12) -> str:
    """The head of a digest."""
    return value[:length] if value else NONE


def clip(text: str, width: int, ellipsis: str = "…") -> str:
    """``text`` in at most ``width`` characters."""
    if len(text) <= width:
        return text
    return text[: max(0, width - len(ellipsis))] + ellipsis if width > 0 else ""


def folded(text: str, width: int, indent: int) -> str:
    """The text in lines of ``width`` cells; all but the first begin under the first's column ``indent``."""
    lines = textwrap.wrap(text, max(20, width - indent), break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines)
