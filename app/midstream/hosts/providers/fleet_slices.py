"""Targets that come and go, and the fleet: found, asked for, and put into the fleet file's own words.

A target of type ``tpu`` says where a slice is, not which machines it has. ``found`` asks its provider and gives a fleet
in which each worker is a host like any other, in the text of the fleet file too: a migration, which runs in a process
of its own and keeps the file that it was planned with, needs no provider to find its hosts.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, TpuTarget
from midstream.fleet.fleet_file import parse_fleet
from midstream.hosts.host_pool import Hosts
from midstream.hosts.providers import interface
from midstream.hosts.providers.interface import Inventory, Pauses, Provider, Say, Slice

AT_ONCE = 32
LOGIN = 120.0  # seconds for a worker that is ready to let us in
ALL_ZONES = "-"
_TOPOLOGY = re.compile(r"\d{1,4}(x\d{1,4}){1,2}")


class Missing(UsageError):
    """A target's slice is not there, or is gone."""


def provider(target: object) -> Provider:
    """Whose machines a target's are."""
    assert isinstance(target, TpuTarget)
    return google()


@cache
def google() -> Provider:
    from midstream.hosts.providers.google.tpu_provider import GoogleTpus

    return GoogleTpus()


def of(fleet: Fleet) -> dict[str, TpuTarget]:
    """The targets that come and go."""
    return {name: target for name, target in fleet.targets.items() if isinstance(target, TpuTarget)}


def found(fleet: Fleet, say: Say, only: Collection[str] | None = None, *, touch: bool = True) -> Fleet:
    """The fleet with the workers of its slices as hosts. A target whose slice is not ready is among ``absent``, with
    the reason and what mends it. ``touch=False`` changes nothing on any slice; ``only`` asks for these alone."""
    asked = {name: target for name, target in of(fleet).items() if only is None or name in only}
    if not asked:
        return fleet

    def ask(name: str) -> dict[str, dict[str, Any]] | UsageError:
        target = asked[name]
        try:
            there = provider(target).find(name, target)
            if there is None or there.standing not in (interface.READY, interface.GOING) or not there.workers:
                return absent(name, target, there)
            return provider(target).reach(name, target, there, say, touch=touch)
        except MidstreamError as error:
            return UsageError(error.message, error.hint)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = dict(zip(asked, pool.map(ask, asked), strict=True))
    hosts = {name: entries for name, entries in answers.items() if not isinstance(entries, UsageError)}
    missing = {name: error for name, error in answers.items() if isinstance(error, UsageError)}
    wider = with_workers(fleet, hosts) if hosts else fleet
    before = {name: error for name, error in fleet.absent.items() if name not in hosts}
    return dataclasses.replace(wider, absent={**before, **missing})


def place(name: str, target: TpuTarget) -> str:
    """``PROJECT/ZONE/NAME`` of a target's slice."""
    return f"{target.project}/{target.zone}/{target.name or name}"


def wait_for_login(fleet: Fleet, name: str, say: Say) -> None:
    """Until every worker lets us in: one that has just been made needs a moment for its SSH server and our key.
    HostError of the worker that does not."""
    hosts = Hosts(fleet)

    def enter(worker: str) -> None:
        deadline, pauses, told = time.monotonic() + LOGIN, Pauses(), ""
        while True:
            try:
                hosts.get(worker)
                return
            except HostError as error:
                if time.monotonic() > deadline:
                    raise
                if error.message != told:
                    say(f"{worker} does not let us in yet: {error.message}")
                    told = error.message
                pauses.next()

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(enter, fleet.target(name).hosts))
    finally:
        hosts.close()


def absent(name: str, target: TpuTarget, there: Slice | None) -> UsageError:
    """Why a target has no hosts now, and what mends it."""
    where = place(name, target)
    asks = f"--launch and --migrate --to {name} ask for it, with --yes"
    if there is None or there.standing in (interface.PREEMPTED, interface.FAILED):
        what = "is not there" if there is None else f"is {there.state}"
        hint = asks if target.create else f"create: true for {name} in the fleet file lets midstream ask for it"
        return Missing(f"{name}: {where} {what}", hint)
    return UsageError(f"{name}: {where} is {there.text()}", "midstream --status shows when it is ready")


def with_workers(fleet: Fleet, hosts: Mapping[str, Mapping[str, dict[str, Any]]]) -> Fleet:
    """The fleet, read anew from its text with these hosts in it, by target."""
    import yaml

    value = yaml.safe_load(fleet.text) or {}
    known = value.setdefault("hosts", {}) or {}
    value["hosts"] = known
    for target, entries in hosts.items():
        for name, entry in entries.items():
            if name in known and name not in value["targets"][target].get("hosts", ()):
                raise UsageError(
                    f"{fleet.path}: hosts.{name} has the name of a worker of {target}", "give one of them another name"
                )
            known[name] = entry
        value["targets"][target]["hosts"] = list(entries)
    return parse_fleet(yaml.safe_dump(value, sort_keys=False), fleet.path)


def inventory(fleet: Fleet) -> Inventory:
    """Every slice of the projects and zones that the fleet file names."""
    places = [(target.project, target.zone) for target in of(fleet).values()]
    zones = fleet.google.zones or [ALL_ZONES]
    places += [(project, zone) for project in fleet.google.projects for zone in zones]
    if not places:
        return Inventory()
    return google().inventory(places)


def devices(target: TpuTarget) -> int | None:
    """As many as jax will see on all workers together, by the name of what is asked for; None where that does not say.
    v2 and v3 have two cores a chip, each a device; v4 and v5p count cores too, of which two are one device; v5e and v6e
    count chips. https://cloud.google.com/tpu/docs/supported-tpu-configurations"""
    if target.worker.get("devices"):
        return None  # virtual ones
    kind, _, count = target.accelerator_type.partition("-")
    if target.topology:
        if not _TOPOLOGY.fullmatch(target.topology):
            return None
        return math.prod(int(side) for side in target.topology.split("x")) * (2 if kind in ("v2", "v3") else 1)
    per_device = {"v2": 1, "v3": 1, "v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}.get(kind)
    return int(count) // per_device if per_device and count.isdigit() else None


def price(target: TpuTarget) -> str:
    """What a creation would cost, as far as the fleet file says."""
    words = {
        "spot": "spot: cheaper, and taken back whenever the provider needs it",
        "reserved": "reserved: paid for by its reservation, used or not",
        "on demand": "on demand: the full price until it is deleted",
    }[target.price_class]
    each = (
        "its price is not in the fleet file" if target.price_per_hour is None else f"{target.price_per_hour:g} an hour"
    )
    bound = f"; waits in the queue for {target.valid_until} at most" if target.queued else ""
    return f"{target.accelerator_type}, {words}; {each}{bound}"


def standing(fleet: Fleet, host: str) -> tuple[str, str]:
    """What the provider of a host says of its slice: a standing, and a line. Of a host that no provider gave, and where
    the provider cannot be asked, UNCLEAR: that says nothing of the host."""
    mine = target_of_host(fleet, host)
    return standing_of_target(fleet, mine[0]) if mine is not None else (interface.UNCLEAR, "")


def standing_of_target(fleet: Fleet, name: str) -> tuple[str, str]:
    """The same of a target, whether or not its hosts are known now."""
    target = of(fleet).get(name)
    if target is None:
        return interface.UNCLEAR, ""
    try:
        there = provider(target).find(name, target)
    except MidstreamError as error:
        return interface.UNCLEAR, f"its provider cannot be asked: {error.message}"
    if there is None:
        return interface.PREEMPTED, f"{place(name, target)} is not there any more, says its provider"
    return there.standing, f"{there.place} is {there.text()}, says its provider"


def target_of_host(fleet: Fleet, host: str) -> tuple[str, TpuTarget] | None:
    """The slice that a host is a worker of."""
    return next(((name, target) for name, target in of(fleet).items() if host in target.hosts), None)
