"""Candidates of a comparison: accelerator names, and targets of the fleet file."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from midstream.compare.device_names import accelerators_of_devices
from midstream.compare.requested_accelerators import (
    UnknownAcceleratorsError,
    accelerators_of_job,
    accelerators_of_pods,
)
from midstream.errors import UsageError
from midstream.fleet.fleet import Fleet
from midstream.suggestions import did_you_mean
from midstream.watch.known_devices import known_devices
from midstream.watch.snapshot import Snapshot
from midstream_core import accelerator_types
from midstream_core.accelerator_types import EXAMPLES, AcceleratorType


@dataclass(frozen=True)
class Candidate:
    """Accelerators to compare."""

    name: str  # as the user wrote it
    accelerators: AcceleratorType
    target: str = ""  # of the fleet file; empty: none
    price: float | None = None  # an hour of all of it
    problem: str = ""  # why its accelerators are not known; empty: they are


UNKNOWN = AcceleratorType("", "", "", "", 0, None, (), ())  # of a target whose accelerators are not known


def candidates(names: str, fleet: Fleet, snapshot: Snapshot | None, prices: Mapping[str, float]) -> list[Candidate]:
    """Return the candidates of ``--with``, in the order of the flag.

    Args:
        names: Value of the flag, names with commas.
        fleet: The fleet, for its targets and prices.
        snapshot: State of the fleet's hosts, for their accelerators; None: not looked at.
        prices: Those of ``--price``, by name.

    Raises:
        UsageError: A name is neither that of accelerators nor of a target, or no candidate's accelerators are known.
    """
    requested = list(dict.fromkeys(filter(None, (name.strip() for name in names.split(",")))))
    if not requested:
        raise UsageError("--with names no accelerators", EXAMPLES)
    compared: list[Candidate] = []
    for name in requested:
        try:
            compared.append(_candidate(name, fleet, snapshot, prices))
        except UnknownAcceleratorsError as error:
            problem = error.message.removeprefix(f"--with {name}: ")
            compared.append(Candidate(name, UNKNOWN, name, problem=problem))
            if len(requested) == 1:
                raise
    unused = set(prices) - set(requested)
    if unused:
        name = min(unused)
        raise UsageError(
            f"--price {name}: {name} is not one of --with", did_you_mean(name, requested) or ", ".join(requested)
        )
    return compared


class UnreachableTargetError(UnknownAcceleratorsError):
    """A target that does not answer, and whose fleet file entry names no accelerators."""


def _candidate(name: str, fleet: Fleet, snapshot: Snapshot | None, prices: Mapping[str, float]) -> Candidate:
    if name in fleet.target_names:
        accelerators = accelerators_of_target(fleet, name, snapshot)
        return Candidate(name, accelerators, name, prices.get(name, price_of_target(fleet, name)))
    try:
        accelerators = accelerator_types.parse(name)
    except ValueError as error:
        raise UsageError(f"--with {error}") from None
    if accelerators is None:
        hint = did_you_mean(name, fleet.target_names) or f"accelerators as {EXAMPLES}, or targets of the fleet file"
        raise UsageError(f"--with {name}: neither accelerators nor a target", hint)
    price = prices.get(name)
    return Candidate(name, accelerators, "", price if price is not None else _price_of_same(fleet, accelerators))


def price_of_target(fleet: Fleet, name: str) -> float | None:
    """Return the price of an hour of a target; None where the fleet file has none."""
    made = fleet.slice_of(name)
    if made is not None:
        return made.price_per_hour
    prices = [fleet.hosts[host].price_per_hour for host in fleet.hosts_of(name)]
    host_prices = [price for price in prices if price is not None]
    return sum(host_prices) if prices and len(host_prices) == len(prices) else None


def _price_of_same(fleet: Fleet, accelerators: AcceleratorType) -> float | None:
    """Return the price of a slice target of the same accelerators; None without one."""
    for config in fleet.slices.values():
        if config.price_per_hour is not None:
            same = config.accelerators
            if same is not None and same.topology == accelerators.topology:
                return config.price_per_hour
    return None


def accelerators_of_target(fleet: Fleet, name: str, snapshot: Snapshot | None) -> AcceleratorType:
    """Return the accelerators of a target of the fleet file.

    Raises:
        UnknownAcceleratorsError: They are not known, or not in the table.
    """
    made, slurm, pods = fleet.slice_of(name), fleet.slurm_of(name), fleet.pods_of(name)
    if made is not None:
        accelerators = made.accelerators
        if accelerators is None:
            raise UnknownAcceleratorsError(f"--with {name}: {made.kind} is not in the table of accelerators", EXAMPLES)
        return accelerators
    if slurm is not None:
        return accelerators_of_job(fleet, name, slurm)
    requested = accelerators_of_pods(pods) if pods is not None else None
    hosts = fleet.hosts_of(name)
    views = [host for host in snapshot.hosts if host.name in hosts] if snapshot is not None else []
    unanswered = sorted(set(hosts) - {view.name for view in views if view.machine is not None})
    if unanswered and requested is not None:
        return requested
    if unanswered:
        raise UnreachableTargetError(
            f"--with {name}: {', '.join(unanswered)} does not answer, so that its accelerators are not known",
            f"name them: {EXAMPLES}",
        )
    kinds = [device.kind for view in views if view.machine for device in view.machine.accelerators]
    accelerators = accelerators_of_devices(kinds)
    if accelerators is None:
        shown = ", ".join(sorted(set(kinds))) or "no accelerators"
        raise UnknownAcceleratorsError(f"--with {name}: {shown}, for which there is no compiler here", EXAMPLES)
    return accelerators


def seen_accelerators(fleet: Fleet, name: str) -> tuple[AcceleratorType, str] | None:
    """Return the accelerators of a target when last seen, and words that say when.

    None where a host was never seen with any, or where no accelerators have this number of devices.
    """
    host_devices = [known_devices(fleet, host) for host in fleet.hosts_of(name)]
    seen = [devices for devices in host_devices if devices is not None]
    accelerators = accelerators_of_devices([kind for devices in seen for kind in devices.kinds])
    if accelerators is None or len(seen) < len(host_devices):
        return None
    oldest = time.strftime("%Y-%m-%d", time.gmtime(min(devices.time for devices in seen)))
    return accelerators, f"as it was seen on {oldest}"


def parse_prices(text: str) -> dict[str, float]:
    """Parse ``v5e-16=19.2,lab=3`` into prices of an hour.

    Raises:
        UsageError: It is malformed.
    """
    prices: dict[str, float] = {}
    for pair in filter(None, (word.strip() for word in text.split(","))):
        name, _, price = pair.rpartition("=")
        if not name or not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", price):
            raise UsageError(f"--price {pair!r} is malformed", "NAME=PRICE of an hour: v5e-16=19.2,h100x8=24")
        prices[name] = float(price)
    return prices
