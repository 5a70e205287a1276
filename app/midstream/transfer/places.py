"""Where trees lie: a directory on a host, or spread over several hosts."""

from __future__ import annotations

from dataclasses import dataclass

from midstream.hosts.base import Host


@dataclass(frozen=True)
class Place:
    """A directory on a host."""

    host: Host
    directory: str

    def __str__(self) -> str:
        return f"{self.host.name}:{self.directory}"
