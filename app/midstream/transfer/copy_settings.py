"""How copies are made: what the fleet file says of the two hosts, or a caller of the API passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from midstream.errors import UsageError
from midstream.fleet.fleet import COPY_ROUTES, HostConfig
from midstream.fleet.units import parse_ports, parse_rate
from midstream.hosts.host import Host

AUTO, DIRECT, RELAY = COPY_ROUTES


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
        if self.route not in COPY_ROUTES:
            raise UsageError(f"route {self.route!r} is not known", ", ".join(COPY_ROUTES))
        if self.rate_limit < 0 or not 0 <= self.streams <= 64:
            raise UsageError(f"rate limit {self.rate_limit}, streams {self.streams}", "0 or more, 64 streams at most")


def of_hosts(source: Host, target: Host) -> CopySettings:
    """What the fleet file says of the two: the lower rate, and no direct way where one of them wants none."""
    configs = [config for host in (source, target) if isinstance(config := _config(host), HostConfig)]
    rates = [parse_rate(config.bandwidth_limit) for config in configs if config.bandwidth_limit]
    routes = [config.copy_route for config in configs if config.copy_route]
    route = next((each for each in (RELAY, DIRECT) if each in routes), AUTO)
    return CopySettings(rate_limit=min(rates, default=0.0), route=route)


def ports_of(host: Host, settings: CopySettings) -> tuple[int, int] | None:
    """The ports that the host may be called on."""
    config = _config(host)
    if isinstance(config, HostConfig) and config.copy_ports:
        return parse_ports(config.copy_ports)
    return settings.ports


def _config(host: Host) -> Any:
    return getattr(host, "config", None)
