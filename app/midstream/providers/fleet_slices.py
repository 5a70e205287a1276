"""Resolution of targets to hosts, and their description.

The targets are those whose machines a provider creates (``tpu``, ``gce``).

The fleet file names a slice, but not its machines. `with_slices` looks the slice up at its provider and returns a fleet
in which each worker is an ordinary host, also in the text of the fleet file: a migration runs in a process of its own
with a copy of that text, and needs no provider to find its hosts.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import yaml

from midstream.errors import HostError, MidstreamError, UsageError
from midstream.fleet.fleet import Fleet, KubernetesHostConfig
from midstream.fleet.fleet_file import parse_fleet
from midstream.fleet.fleet_yaml import load_yaml
from midstream.fleet.gce_target import ComputeTarget
from midstream.fleet.slice_target import SliceTarget
from midstream.fleet.tpu_target import TpuTarget
from midstream.hosts.host_pool import HostPool
from midstream.providers.gce.provider import ComputeProvider
from midstream.providers.provider import (
    ErrorKind,
    Inventory,
    Polling,
    Progress,
    Provider,
    ProviderError,
    Slice,
    SliceStatus,
)
from midstream.providers.tpu.provider import TpuProvider
from midstream_core.json_types import JsonValue

MAX_CONCURRENT_REQUESTS = 32
LOGIN_TIMEOUT = 120.0  # seconds that the first login to a worker of a ready slice may take
ALL_ZONES = "-"


class SliceMissingError(UsageError):
    """A target's slice does not exist, or was preempted."""


class SlicePendingError(UsageError):
    """A target's slice was requested, and is not ready yet."""


# Provider of each type of target.
PROVIDERS: dict[type[SliceTarget], Callable[[], Provider]] = {TpuTarget: TpuProvider, ComputeTarget: ComputeProvider}


@cache
def provider_of_type(kind: type[SliceTarget]) -> Provider:
    """Return the provider of a type of target, opened once."""
    return PROVIDERS[kind]()


def provider_of(target: SliceTarget) -> Provider:
    """Return the provider of a target's slice."""
    return provider_of_type(type(target))


def delete(fleet: Fleet, path: str, progress: Progress) -> None:
    """Delete the slice at ``PROJECT/ZONE/NAME`` at the provider that has it.

    Raises:
        ProviderError: The deletion failed.
    """
    mine = [target for name, target in fleet.slices.items() if slice_path(name, target) == path]
    providers = [provider_of(mine[0])] if mine else [provider_of_type(kind) for kind in _listed_types(fleet)]
    for provider in providers[:-1]:
        try:
            provider.delete(path, progress)
            return
        except ProviderError as error:
            if error.kind != ErrorKind.NOT_FOUND:
                raise
    providers[-1].delete(path, progress)


def with_slices(fleet: Fleet, progress: Progress, only: Collection[str] | None = None, *, touch: bool = True) -> Fleet:
    """Return the fleet with the workers of its slices as hosts.

    A target whose slice is not ready is in ``unavailable``, with the reason and a hint. ``touch=False`` changes nothing
    on any slice; ``only`` names the targets that are looked up.
    """
    targets = {name: target for name, target in fleet.slices.items() if only is None or name in only}
    if not targets:
        return fleet

    def resolve(name: str) -> dict[str, dict[str, JsonValue]] | UsageError:
        target = targets[name]
        try:
            slice_ = provider_of(target).find(name, target)
            usable = slice_ is not None and slice_.status in (SliceStatus.READY, SliceStatus.STOPPING)
            if slice_ is None or slice_.multislice or not usable or not slice_.workers:
                return unavailable(name, target, slice_)
            return provider_of(target).grant_access(name, target, slice_, progress, touch=touch)
        except MidstreamError as error:
            return UsageError(error.message, error.hint)

    with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
        answers = dict(zip(targets, pool.map(resolve, targets), strict=True))
    hosts = {name: entries for name, entries in answers.items() if not isinstance(entries, UsageError)}
    missing = {name: error for name, error in answers.items() if isinstance(error, UsageError)}
    wider = with_workers(fleet, hosts) if hosts else fleet
    before = {name: error for name, error in fleet.unavailable.items() if name not in hosts}
    return dataclasses.replace(wider, unavailable={**before, **missing})


def slice_path(name: str, target: SliceTarget) -> str:
    """Return ``PROJECT/ZONE/NAME`` of a target's slice."""
    return f"{target.project}/{target.zone}/{target.name or name}"


def wait_for_login(fleet: Fleet, name: str, progress: Progress) -> None:
    """Wait until every worker accepts a login.

    A new worker needs a moment to start its SSH server and to install our key. Raises the HostError of a worker that
    does not accept one in time.
    """
    hosts = HostPool(fleet)

    def log_in(worker: str) -> None:
        deadline, polling, reported = time.monotonic() + LOGIN_TIMEOUT, Polling(), ""
        while True:
            try:
                hosts.get(worker)
                return
            except HostError as error:
                if time.monotonic() > deadline:
                    raise
                if error.message != reported:
                    progress(f"{worker} accepts no login yet: {error.message}")
                    reported = error.message
                polling.wait()

    try:
        with ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS) as pool:
            list(pool.map(log_in, fleet.target(name).hosts))
    finally:
        hosts.close()


def unavailable(name: str, target: SliceTarget, slice_: Slice | None) -> UsageError:
    """Return the error that explains why a target has no hosts now."""
    path = slice_path(name, target)
    if slice_ is not None and slice_.multislice:
        return UsageError(f"{name}: {path} is {slice_.text()}", "a target is one slice: request it without Multislice")
    if slice_ is not None and slice_.stopped:
        hint = f"start it again; or midstream --delete {name}, if nothing on its disks is needed"
        return UsageError(f"{name}: {path} is {slice_.state}", hint)
    if slice_ is None or slice_.status in (SliceStatus.PREEMPTED, SliceStatus.FAILED):
        state = "does not exist" if slice_ is None else f"is {slice_.state}"
        creates = f"--launch and --migrate --to {name} create it, with --yes"
        hint = creates if target.create else f"create: true for {name} in the fleet file lets midstream create it"
        return SliceMissingError(f"{name}: {path} {state}", hint)
    return SlicePendingError(f"{name}: {path} is {slice_.text()}", "midstream --status shows when it is ready")


def with_workers(fleet: Fleet, hosts: Mapping[str, Mapping[str, dict[str, Any]]]) -> Fleet:
    """Return the fleet with these hosts, by target, added to its text."""
    value = load_yaml(fleet.text) or {}
    host_entries = value.setdefault("hosts", {}) or {}
    value["hosts"] = host_entries
    for target, entries in hosts.items():
        for name, entry in entries.items():
            if name in host_entries and name not in value["targets"][target].get("hosts", ()):
                raise UsageError(
                    f"{fleet.path}: hosts.{name} has the name of a worker of {target}", "rename one of them"
                )
            host_entries[name] = entry
        value["targets"][target]["hosts"] = list(entries)
    return parse_fleet(yaml.safe_dump(value, sort_keys=False), fleet.path)


def list_slices(fleet: Fleet) -> Inventory:
    """List every slice of the projects and zones that the fleet file names."""
    zones = {kind: list[tuple[str, str]]() for kind in _listed_types(fleet)}
    for target in fleet.slices.values():
        zones[type(target)].append((target.project, target.zone))
    zones[TpuTarget] += [
        (project, zone) for project in fleet.google.projects for zone in fleet.google.zones or [ALL_ZONES]
    ]
    inventories = [provider_of_type(kind).inventory(pairs) for kind, pairs in zones.items() if pairs]
    slices = {slice_.path: slice_ for inventory in inventories for slice_ in inventory.slices}
    return Inventory(
        tuple(slices.values()), tuple(problem for inventory in inventories for problem in inventory.problems)
    )


def _listed_types(fleet: Fleet) -> list[type[SliceTarget]]:
    """Return the types of targets whose slices are listed.

    Those of Cloud TPUs always; another one where a target has it, as most projects lack the others' API.
    """
    used = {type(target) for target in fleet.slices.values()}
    return [kind for kind in PROVIDERS if kind is TpuTarget or kind in used]


def price_text(target: SliceTarget) -> str:
    """Describe what creating a slice costs, as far as the fleet file defines it."""
    words = {
        "spot": "spot: cheaper, and preempted whenever the provider needs it",
        "reserved": "reserved: paid for by its reservation, used or not",
        "flex-start": f"flex-start: waits for capacity, then runs for {target.run_duration} and is deleted",
        "on demand": "on demand: the full price until it is deleted",
    }[target.price_class]
    price = (
        "its price is not in the fleet file" if target.price_per_hour is None else f"{target.price_per_hour:g} an hour"
    )
    limit = f"; waits in the queue for {target.valid_until} at most" if target.waits else ""
    return f"{target.kind}, {words}; {price}{limit}"


def host_slice_status(fleet: Fleet, host: str) -> tuple[SliceStatus, str]:
    """Return the status of a host's slice or pod, and a line that explains it.

    The status is UNKNOWN for a host that no provider created, and if the provider does not answer. UNKNOWN is no
    evidence about the host.
    """
    config = fleet.hosts.get(host)
    if isinstance(config, KubernetesHostConfig):
        from midstream.providers.pod_status import pod_status

        return pod_status(fleet, host, config)
    mine = target_of_host(fleet, host)
    return target_slice_status(fleet, mine[0]) if mine is not None else (SliceStatus.UNKNOWN, "")


def target_slice_status(fleet: Fleet, name: str) -> tuple[SliceStatus, str]:
    """Return the same for a target, even if its hosts are unknown."""
    target = fleet.slices.get(name)
    if target is None:
        return SliceStatus.UNKNOWN, ""
    try:
        slice_ = provider_of(target).find(name, target)
    except MidstreamError as error:
        return SliceStatus.UNKNOWN, f"its provider does not answer: {error.message}"
    if slice_ is None:
        return SliceStatus.PREEMPTED, f"{slice_path(name, target)} no longer exists, according to its provider"
    return slice_.status, f"{slice_.path} is {slice_.text()}, according to its provider"


def is_preempted(fleet: Fleet, name: str) -> bool:
    """Return whether the provider of a host or target says that nothing runs there.

    The hosts of the target may be unknown.
    """
    status = host_slice_status if name in fleet.hosts else target_slice_status
    return status(fleet, name)[0] == SliceStatus.PREEMPTED


def target_of_host(fleet: Fleet, host: str) -> tuple[str, SliceTarget] | None:
    """Return the name and target of the slice that a host is a worker of."""
    return next(((name, target) for name, target in fleet.slices.items() if host in target.hosts), None)
