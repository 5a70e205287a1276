"""Parse rates, durations and port ranges of the fleet file and the command line."""

from __future__ import annotations

import re

from midstream.errors import UsageError

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)([Bb]?)(?:/s)?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhd])")
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def parse_rate(text: str) -> float:
    """Parse ``"100MB/s"`` into bytes per second. Raises UsageError.

    k, M, G, T are powers of 1000; ki, Mi, Gi, Ti of 1024; ``b`` is bits.
    """
    match = _RATE.fullmatch(text.strip())
    if not match or (match[3] and not match[2]):
        raise UsageError(f"rate {text!r} is malformed", "100MB/s, 1Gb/s, 500MiB/s")
    if not match[4]:
        raise UsageError(f"rate {text!r} has no unit", "100MB/s, 1Gb/s, 500MiB/s")
    power = " kMGT".index(match[2] or " ")
    return float(match[1]) * (1024 if match[3] else 1000) ** power / (8 if match[4] == "b" else 1)


def check_price(where: str, price_per_hour: float | None) -> None:
    """Refuse a price that is negative or no number. Raises UsageError."""
    if price_per_hour is not None and not 0 <= float(price_per_hour) < float("inf"):
        raise UsageError(f"{where}.price_per_hour is {price_per_hour}", "0 or more")


def parse_duration(text: str) -> float:
    """Parse ``"90m"`` (s, m, h, d) into seconds. Raises UsageError."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise UsageError(f"duration {text!r} is malformed", "30m, 6h, 2d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def parse_ports(text: str) -> tuple[int, int]:
    """Parse ``"40000-40100"`` into the first and the last port. Raises UsageError."""
    match = _PORTS.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < first <= last < 65536:
        raise UsageError(f"ports {text!r} are malformed", "FIRST-LAST, between 1 and 65535")
    return first, last
