"""Look-up of machines and groups of Compute Engine as slices, with their states.

A slice of several machines has three resources of one name: a workload policy with the topology, an instance template,
and a managed instance group. Policies and groups have no labels, so ours are in their descriptions.
API: https://cloud.google.com/compute/docs/reference/rest/v1/instances
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

from midstream.fleet.machine_type import machine_of
from midstream.providers.gce.client import ComputeClients, call, region_of
from midstream.providers.gce.errors import explained
from midstream.providers.provider import PRICE_LABEL, TARGET_LABEL, Inventory, ProviderError, Slice, SliceStatus, Worker
from midstream.providers.service_types import Message
from midstream_core.json_types import JsonValue

INCOMPLETE = "INCOMPLETE"  # state of a slice whose group does not exist, and whose policy or template does
ZONE_LABEL = "midstream-zone"  # templates belong to no zone
MAX_MACHINES = 4096
_STATES = {
    "RUNNING": SliceStatus.READY,
    "PENDING": SliceStatus.CREATING,  # flex-start waits for capacity
    "PROVISIONING": SliceStatus.CREATING,
    "STAGING": SliceStatus.CREATING,
    "REPAIRING": SliceStatus.STOPPING,
    "PENDING_STOP": SliceStatus.STOPPING,
    "STOPPING": SliceStatus.STOPPING,
    "SUSPENDING": SliceStatus.STOPPING,
    "DEPROVISIONING": SliceStatus.STOPPING,
    "SUSPENDED": SliceStatus.PREEMPTED,
    "TERMINATED": SliceStatus.PREEMPTED,  # stopped, which is what a preemption does to a spot machine
    "STOPPED": SliceStatus.PREEMPTED,
}
_GROUP = re.compile(r"/instanceGroupManagers/([a-z0-9-]{1,63})$")


def find(clients: ComputeClients, project: str, zone: str, name: str) -> Slice | None:
    """Return the slice of that name: a group, a machine, or a failed creation of ours."""
    with explained(f"{name} cannot be looked up", project, zone):
        group = _get(clients.groups.get, project=project, zone=zone, instance_group_manager=name)
        if group is not None:
            return _from_group(project, zone, group, _machines_of(clients, project, zone, name))
        instance = _get(clients.instances.get, project=project, zone=zone, instance=name)
        if instance is not None:
            return _from_instance(project, zone, instance)
        parts = [
            _get(clients.templates.get, project=project, instance_template=name),
            _get(clients.policies.get, project=project, region=region_of(zone), resource_policy=name),
        ]
        return _incomplete(project, zone, name, [resource for resource in parts if resource is not None])


def inventory(clients: ComputeClients, zones: Sequence[tuple[str, str]]) -> Inventory:
    """List slices with TPUs of (project, zone) pairs, and our incomplete creations."""
    slices: dict[str, Slice] = {}
    problems = []
    for project, zone in dict.fromkeys(zones):
        try:
            for slice_ in _listed(clients, project, zone):
                slices.setdefault(slice_.path, slice_)
        except ProviderError as error:
            problems.append(str(error))
    return Inventory(tuple(slices.values()), tuple(dict.fromkeys(problems)))


def _listed(clients: ComputeClients, project: str, zone: str) -> list[Slice]:
    with explained(f"the machines of {project}/{zone} cannot be listed", project, zone):
        members: dict[str, list[Any]] = {}
        listed = []
        for instance in call(clients.instances.list, project=project, zone=zone):
            group = group_of(instance)
            if group:
                members.setdefault(group, []).append(instance)
            elif machine_of(_last(instance.machine_type)) is not None or TARGET_LABEL in instance.labels:
                listed.append(_from_instance(project, zone, instance))
        names = set()
        for group in call(clients.groups.list, project=project, zone=zone):
            names.add(group.name)
            machines = members.get(group.name, [])
            has_tpus = any(machine_of(_last(machine.machine_type)) is not None for machine in machines)
            if TARGET_LABEL in labels_in(group.description) or has_tpus:
                listed.append(_from_group(project, zone, group, [(machine, "", "") for machine in machines]))
        remains: dict[str, list[Any]] = {}
        parts = [*call(clients.templates.list, project=project)]
        parts += call(clients.policies.list, project=project, region=region_of(zone))
        for resource in parts:
            if resource.name not in names and labels_in(resource.description).get(ZONE_LABEL) == zone:
                remains.setdefault(resource.name, []).append(resource)
        listed += [
            slice_ for name, some in remains.items() if (slice_ := _incomplete(project, zone, name, some)) is not None
        ]
        return listed


def _get(method: object, **request: object) -> Message:
    from google.api_core.exceptions import NotFound

    try:
        return call(method, **request)
    except NotFound:
        return None


def _machines_of(clients: ComputeClients, project: str, zone: str, name: str) -> list[tuple[JsonValue, str, str]]:
    """Return the machines of a group, each with the error of its failed creation.

    A missing machine is None.
    """
    machines = []
    for managed in call(clients.groups.list_managed_instances, project=project, zone=zone, instance_group_manager=name):
        if len(machines) >= MAX_MACHINES:
            break
        errors = managed.last_attempt.errors.errors if "last_attempt" in managed else []
        code, message = (errors[0].code, errors[0].message) if errors else ("", "")
        instance = _get(clients.instances.get, project=project, zone=zone, instance=_last(managed.instance))
        machines.append((instance, code, " ".join(message.split())[:300]))
    return machines


def _from_instance(project: str, zone: str, instance: Message) -> Slice:
    """Return a machine of its own as a slice."""
    return Slice(
        project,
        zone,
        instance.name,
        _STATES.get(instance.status, SliceStatus.UNKNOWN),
        instance.status,
        accelerator_type=_last(instance.machine_type),
        runtime_version=_image(instance),
        price_class=price_class(instance),
        workers=(_worker(instance),) if _has_address(instance) else (),
        labels=dict(instance.labels),
        metadata=_metadata(instance),
        identity=str(instance.id),
        created=_created(instance),
        why=instance.status_message,
        machines=(instance.name,),
        stopped=_is_stopped(instance),
    )


def _from_group(project: str, zone: str, group: Message, machines: Sequence[tuple[Message, str, str]]) -> Slice:
    """Return a group as a slice: ready once all its machines run."""
    present = sorted((machine for machine, _, _ in machines if machine is not None), key=lambda machine: machine.name)
    status, state = _group_status(group, present)
    errors = list(dict.fromkeys(f"{code}: {message}".strip(": ") for _, code, message in machines if code or message))
    first = present[0] if present else None
    return Slice(
        project,
        zone,
        group.name,
        status,
        state,
        accelerator_type=_last(first.machine_type) if first is not None else "",
        topology=_topology(group),
        runtime_version=_image(first) if first is not None else "",
        price_class=price_class(first) if first is not None else _announced_price_class(labels_in(group.description)),
        workers=tuple(_worker(machine) for machine in present) if all(map(_has_address, present)) else (),
        labels=labels_in(group.description),
        metadata=_metadata(first) if first is not None else {},
        node=bool(present),
        identity=str(group.id),
        created=_created(group),
        why="; ".join(errors[:2]),
        machines=tuple(machine.name for machine in present),
        stopped=any(map(_is_stopped, present)),
    )


def _group_status(group: Message, present: Sequence[Message]) -> tuple[SliceStatus, str]:
    """Return a group's status: that of its machine which is furthest from running."""
    if len(present) < group.target_size or not present:
        return SliceStatus.CREATING, "CREATING"
    order = (SliceStatus.PREEMPTED, SliceStatus.STOPPING, SliceStatus.CREATING, SliceStatus.UNKNOWN)
    by_status = {_STATES.get(machine.status, SliceStatus.UNKNOWN): machine.status for machine in present}
    worst = next((status for status in order if status in by_status), SliceStatus.READY)
    return worst, by_status[worst]


def _incomplete(project: str, zone: str, name: str, parts: Sequence[Message]) -> Slice | None:
    """Return the remains of a creation of ours without its group; None without any."""
    ours = [labels for resource in parts if TARGET_LABEL in (labels := labels_in(resource.description))]
    if not ours:
        return None
    why = f"{' and '.join(sorted(_kind_of(resource) for resource in parts))} without a group"
    labels = ours[0]
    return Slice(
        project, zone, name, SliceStatus.FAILED, INCOMPLETE, labels=labels, node=False, why=why,
        price_class=_announced_price_class(labels), created=_created(parts[0]),
    )  # fmt: skip


def _kind_of(resource: object) -> str:
    return "policy" if type(resource).__name__ == "ResourcePolicy" else "template"


def price_class(instance: Message) -> str:
    """Return the price class that a machine was created with."""
    model = instance.scheduling.provisioning_model
    if model == "SPOT" or instance.scheduling.preemptible:
        return "spot"
    if model == "FLEX_START":
        return "flex-start"
    affinity = instance.reservation_affinity.consume_reservation_type
    return "reserved" if model == "RESERVATION_BOUND" or affinity == "SPECIFIC_RESERVATION" else "on demand"


def _is_stopped(instance: Message) -> bool:
    """Return whether a machine that no provider preempts does not run."""
    standard = instance.scheduling.provisioning_model in ("", "STANDARD") and not instance.scheduling.preemptible
    return standard and _STATES.get(instance.status) == SliceStatus.PREEMPTED


def _announced_price_class(labels: Mapping[str, str]) -> str:
    return labels.get(PRICE_LABEL, "").replace("on-demand", "on demand")


def labels_in(description: str) -> dict[str, str]:
    """Return the labels in a description of ours.

    Example: ``midstream-target=pod midstream-token=...``.
    """
    words = (word.partition("=") for word in description.split()[:20])
    return {key: value for key, _, value in words if key.startswith("midstream-")}


def description_of(labels: Mapping[str, str]) -> str:
    """Return the description that `labels_in` reads."""
    return " ".join(f"{key}={value}" for key, value in labels.items())


def group_of(instance: object) -> str:
    """Return the name of the group that created a machine; empty for others."""
    match = _GROUP.search(_metadata(instance).get("created-by", ""))
    return match[1] if match else ""


def _worker(instance: Message) -> Worker:
    """Return the addresses of a machine's first network interface."""
    first = instance.network_interfaces[0]
    external = next((access.nat_i_p for access in first.access_configs if access.nat_i_p), "")
    return Worker(first.network_i_p, external)


def _has_address(instance: Message) -> bool:
    return bool(instance.network_interfaces and instance.network_interfaces[0].network_i_p)


def _metadata(instance: Message) -> dict[str, str]:
    return {item.key: item.value for item in instance.metadata.items}


def _image(instance: Message) -> str:
    disk = next(iter(instance.disks), None)
    return _last(disk.initialize_params.source_image) if disk is not None else ""


def _topology(group: Message) -> str:
    return labels_in(group.description).get("midstream-topology", "")


def _last(address: str) -> str:
    return address.rpartition("/")[2]


def _created(resource: Message) -> float | None:
    """Return the creation time in UTC seconds."""
    try:
        return datetime.datetime.fromisoformat(resource.creation_timestamp).timestamp()
    except ValueError:
        return None
