"""Open the hosts of a fleet, and share their connections."""

from __future__ import annotations

import threading
from collections.abc import Callable

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, HostConfig, KubernetesHostConfig, LocalHostConfig, SshHostConfig
from midstream.hosts.host import FleetHost
from midstream.suggestions import nearest


def _local(name: str, config: LocalHostConfig) -> FleetHost:
    from midstream.hosts.local_host import LocalHost

    return LocalHost(name, config, runs_engines=True)


def _ssh(name: str, config: SshHostConfig) -> FleetHost:
    from midstream.hosts.ssh.ssh_host import SshHost  # imports paramiko, which a local fleet does not need

    return SshHost(name, config)


def _kubernetes(name: str, config: KubernetesHostConfig) -> FleetHost:
    from midstream.hosts.kubernetes_host import KubernetesHost

    return KubernetesHost(name, config)


_OPEN: dict[type[HostConfig], Callable[..., FleetHost]] = {
    LocalHostConfig: _local,
    SshHostConfig: _ssh,
    KubernetesHostConfig: _kubernetes,
}


def open_host(name: str, config: HostConfig) -> FleetHost:
    """Return the host of a fleet entry, not connected yet."""
    if type(config) not in _OPEN:
        raise UsageError(f"host {name} is of a type that cannot be reached: {type(config).__name__}")
    return _OPEN[type(config)](name, config)


class HostPool:
    """The hosts of a fleet, each opened once and shared. All methods are thread-safe."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._hosts: dict[str, FleetHost] = {}
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Start what the first program on a local host needs.

        Call it before what uses the hosts is imported.
        """
        if self.fleet.local_hosts:
            from midstream.hosts.local_forks import FORKS

            FORKS.prepare()

    def get(self, name: str) -> FleetHost:
        """Return the connected host.

        Raises:
            HostError: It cannot be reached.
            UsageError: The fleet has no such host.
        """
        host = self.lookup(name)
        host.connect()
        return host

    def lookup(self, name: str) -> FleetHost:
        """Return the host, connected or not. UsageError if the fleet has no such host."""
        if name not in self.fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(self.fleet.hosts)))
        with self._lock:
            if name not in self._hosts:
                self._hosts[name] = open_host(name, self.fleet.hosts[name])
            return self._hosts[name]

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            hosts, self._hosts = list(self._hosts.values()), {}
        for host in hosts:
            host.close()
