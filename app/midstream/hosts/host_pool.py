"""From the fleet file's words to machines that answer."""

from __future__ import annotations

import threading

from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet, HostConfig, LocalHost, SshHost, nearest
from midstream.hosts.host import Host


def open_host(name: str, config: HostConfig) -> Host:
    """The host of a fleet entry, not connected yet."""
    if isinstance(config, SshHost):
        from midstream.hosts.ssh.ssh_host import SshMachine

        return SshMachine(name, config)
    if isinstance(config, LocalHost):
        from midstream.hosts.local_host import LocalMachine

        return LocalMachine(name, config)
    raise UsageError(f"host {name} is of a type that cannot be reached: {type(config).__name__}")


class Hosts:
    """The machines of a fleet, each opened once and shared by all who ask. Threads may ask at once."""

    def __init__(self, fleet: Fleet):
        self.fleet = fleet
        self._hosts: dict[str, Host] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Host:
        """The connected host. HostError where it cannot be reached, UsageError where the fleet has no such host."""
        host = self.peek(name)
        host.connect()
        return host

    def peek(self, name: str) -> Host:
        """The host, connected or not."""
        if name not in self.fleet.hosts:
            raise UsageError(f"no host {name!r} in the fleet file", nearest(name, tuple(self.fleet.hosts)))
        with self._lock:
            if name not in self._hosts:
                self._hosts[name] = open_host(name, self.fleet.hosts[name])
            return self._hosts[name]

    def close(self) -> None:
        with self._lock:
            hosts, self._hosts = list(self._hosts.values()), {}
        for host in hosts:
            host.close()
