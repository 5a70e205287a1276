"""Prices an hour of hosts and of groups of hosts, as the fleet file has them now."""

from __future__ import annotations

import re
from collections.abc import Collection

from midstream.fleet.fleet import Fleet

_WORKER = re.compile(r"(.+)-(\d{1,5})")  # worker N of a slice is TARGET-N


class Prices:
    """Prices by host, also of the workers of slices that no longer exist."""

    def __init__(self, fleet: Fleet, hosts: Collection[str]) -> None:
        """Find the price of every host.

        Args:
            fleet: The fleet file.
            hosts: Names of all hosts that have cost something, also of those that the fleet does not have any more.
        """
        self._prices = {name: config.price_per_hour for name, config in fleet.hosts.items()}
        deleted: dict[str, list[str]] = {}
        for name in set(hosts) - set(fleet.hosts):
            match = _WORKER.fullmatch(name)
            if match and fleet.slice_of(match[1]) is not None:
                deleted.setdefault(match[1], []).append(name)
        for target, workers in deleted.items():
            config = fleet.slices[target]
            price = None if config.price_per_hour is None else config.price_per_hour / len(workers)
            self._prices.update(dict.fromkeys(workers, price))

    def host(self, name: str) -> float | None:
        """Return the price of one host; None where the fleet file has none."""
        return self._prices.get(name)

    def group(self, names: Collection[str]) -> float | None:
        """Return the price of hosts together; None where one has no price."""
        prices = [self.host(name) for name in names]
        return None if not prices or None in prices else sum(price for price in prices if price is not None)
