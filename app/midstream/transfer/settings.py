"""How copies are made: what a person may set in the fleet file's ``transfer:``, or an API's caller may pass."""

from __future__ import annotations

import re
from dataclasses import dataclass

from midstream.errors import UsageError

AUTO, DIRECT, RELAY = "auto", "direct", "relay"
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)([Bb]?)(?:/s)?")


@dataclass(frozen=True)
class CopySettings:
    """``rate_limit`` in bytes a second over all streams of a copy; 0: none. ``streams``: 0, as many as the way
    deserves. ``route`` between two SSH hosts. ``ports`` (first, last) that a host may be called on; none: any that is
    free."""

    rate_limit: float = 0.0
    streams: int = 0
    route: str = AUTO
    ports: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.route not in (AUTO, DIRECT, RELAY):
            raise UsageError(f"route {self.route!r} is not known", f"{AUTO}, {DIRECT} or {RELAY}")
        if self.rate_limit < 0 or not 0 <= self.streams <= 64:
            raise UsageError(f"rate limit {self.rate_limit}, streams {self.streams}", "0 or more, 64 streams at most")
        if self.ports and not 0 < self.ports[0] <= self.ports[1] < 65536:
            raise UsageError(f"ports {self.ports[0]}-{self.ports[1]}", "FIRST-LAST, between 1 and 65535")


def parse_rate(text: str) -> float:
    """``"100MB/s"`` -> bytes a second: k, M, G, T by 1000, ki, Mi, Gi, Ti by 1024, ``b`` for bits. UsageError else."""
    match = _RATE.fullmatch(text.strip())
    if not match or (match[3] and not match[2]):
        raise UsageError(f"rate {text!r} cannot be read", "100MB/s, 1Gb/s, 500MiB/s")
    power = " kMGT".index(match[2] or " ")
    return float(match[1]) * (1024 if match[3] else 1000) ** power / (8 if match[4] == "b" else 1)
