"""Settings of copies, from both hosts' fleet file entries or an API caller."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.errors import UsageError
from midstream.fleet.fleet import COPY_ROUTES
from midstream.fleet.quantities import parse_ports, parse_rate
from midstream.hosts.host import Host

AUTO, DIRECT, RELAY = COPY_ROUTES
MAX_STREAMS = 64


@dataclass(frozen=True)
class CopySettings:
    """Settings of one copy.

    Attributes:
        bandwidth_limit: Bytes per second over all streams; 0 for none.
        streams: Number of streams; 0 for as many as the link needs.
        route: One of ``COPY_ROUTES``: ``direct`` refuses to relay between two SSH hosts; ``relay`` opens no port, nor
            does a copy of this machine then.
        ports: First and last port on which a host may listen; None for any that is free.
    """

    bandwidth_limit: float = 0.0
    streams: int = 0
    route: str = AUTO
    ports: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.route not in COPY_ROUTES:
            raise UsageError(f"route {self.route!r} does not exist", ", ".join(COPY_ROUTES))
        if self.bandwidth_limit < 0 or not 0 <= self.streams <= MAX_STREAMS:
            raise UsageError(
                f"bandwidth_limit is {self.bandwidth_limit} bytes/s, streams is {self.streams}",
                f"both 0 or more, at most {MAX_STREAMS} streams",
            )


def settings_of_hosts(source: Host, target: Host) -> CopySettings:
    """Return the fleet file's settings for two hosts.

    The lower limit applies, and a direct route is allowed only if both hosts allow it.
    """
    configs = [host.config for host in (source, target) if host.config is not None]
    limits = [parse_rate(config.bandwidth_limit) for config in configs if config.bandwidth_limit]
    routes = [config.copy_route for config in configs if config.copy_route]
    route = next((candidate for candidate in (RELAY, DIRECT) if candidate in routes), AUTO)
    return CopySettings(bandwidth_limit=min(limits, default=0.0), route=route)


def ports_of(host: Host, settings: CopySettings) -> tuple[int, int] | None:
    """Return the first and last port on which the host may listen."""
    if host.config is not None and host.config.copy_ports:
        return parse_ports(host.config.copy_ports)
    return settings.ports
