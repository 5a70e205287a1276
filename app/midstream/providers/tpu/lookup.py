"""Look up nodes and queued resources as slices, and translate their states.

API: https://cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from midstream.providers.google_errors import explained
from midstream.providers.google_rest import CALL_TIMEOUT
from midstream.providers.provider import PRICE_LABEL, Inventory, ProviderError, Slice, SliceStatus, Worker
from midstream.providers.service_types import Message
from midstream.providers.tpu.client import read_retry

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient
    from google.cloud.tpu_v2.types import Node, QueuedResource

_NODE_STATES = {
    "READY": SliceStatus.READY,
    "CREATING": SliceStatus.CREATING,
    "STARTING": SliceStatus.CREATING,
    "RESTARTING": SliceStatus.CREATING,
    "REIMAGING": SliceStatus.CREATING,
    "UNHIDING": SliceStatus.CREATING,
    "REPAIRING": SliceStatus.STOPPING,
    "STOPPING": SliceStatus.STOPPING,
    "DELETING": SliceStatus.STOPPING,
    "HIDING": SliceStatus.STOPPING,
    "PREEMPTED": SliceStatus.PREEMPTED,
    "TERMINATED": SliceStatus.PREEMPTED,
    "STOPPED": SliceStatus.PREEMPTED,
    "HIDDEN": SliceStatus.PREEMPTED,
}
_REQUEST_STATES = {
    "CREATING": SliceStatus.CREATING,
    "ACCEPTED": SliceStatus.CREATING,
    "WAITING_FOR_RESOURCES": SliceStatus.CREATING,
    "PROVISIONING": SliceStatus.CREATING,
    "ACTIVE": SliceStatus.CREATING,  # its node is not listed yet
    "FAILED": SliceStatus.FAILED,
    "SUSPENDING": SliceStatus.STOPPING,
    "SUSPENDED": SliceStatus.PREEMPTED,
    "DELETING": SliceStatus.STOPPING,
}


def inventory(client: TpuClient, zones: Sequence[tuple[str, str]]) -> Inventory:
    """List the slices of (project, zone) pairs; zone ``-`` is all zones of a project."""
    slices: dict[str, Slice] = {}
    problems = []
    for project, zone in dict.fromkeys(zones):
        try:
            with explained(f"the TPUs of {project}/{zone} cannot be listed", project, zone):
                for slice_ in _listed(client, f"projects/{project}/locations/{zone}", problems):
                    slices.setdefault(slice_.path, slice_)
        except ProviderError as error:
            problems.append(str(error))
    return Inventory(tuple(slices.values()), tuple(dict.fromkeys(problems)))


def _listed(client: TpuClient, parent: str, problems: list[str]) -> Iterator[Slice]:
    words = {"retry": read_retry(), "timeout": CALL_TIMEOUT}
    queued = {resource.name: resource for resource in client.list_queued_resources(parent=parent, **words)}
    nodes = client.list_nodes(parent=parent, **words)
    with_node = set()
    for page in nodes.pages:
        problems += [f"{zone} is unreachable now" for zone in page.unreachable]
        for node in page.nodes:
            with_node.add(node.queued_resource)
            yield from_node(node, queued.get(node.queued_resource))
    for name, request in queued.items():
        if name not in with_node:
            yield from_request(request)


def find(client: TpuClient, project: str, zone: str, name: str, *, retry: bool = True) -> Slice | None:
    """Return the slice of that name, None if neither a node nor a request has it.

    Args:
        client: Client of the TPU service.
        project: Google's project.
        zone: The zone.
        name: Name of the slice.
        retry: Whether to repeat failed requests, for a minute.
    """
    parent = f"projects/{project}/locations/{zone}"
    node = _get(client.get_node, f"{parent}/nodes/{name}", project, zone, retry=retry)
    request = None
    if node is None or node.queued_resource:
        queue = node.queued_resource if node is not None else f"{parent}/queuedResources/{name}"
        request = _get(client.get_queued_resource, queue, project, zone, retry=retry)
    if node is not None:
        return from_node(node, request)
    return from_request(request) if request is not None else None


def _get(call: Message, name: str, project: str, zone: str, *, retry: bool) -> Message:
    from google.api_core.exceptions import NotFound

    with explained(f"{name.rpartition('/')[2]} cannot be looked up", project, zone):
        try:
            return call(name=name, retry=read_retry() if retry else None, timeout=CALL_TIMEOUT)
        except NotFound:
            return None


def from_node(node: Node, request: QueuedResource | None) -> Slice:
    """Return a node as a slice.

    A suspended request reports a preemption before its node does, and sometimes only the request does.
    """
    project, zone, name = split(node.name)
    queued = enum_name(request.state, "state") if request is not None else ""
    state, health = enum_name(node, "state"), enum_name(node, "health")
    status = _NODE_STATES.get(state, SliceStatus.UNKNOWN)
    if queued in ("SUSPENDING", "SUSPENDED", "DELETING") and status in (SliceStatus.READY, SliceStatus.CREATING):
        status = _REQUEST_STATES[queued]
    if status == SliceStatus.READY and health == "UNHEALTHY_MAINTENANCE":
        status = SliceStatus.STOPPING
    spot = (
        node.scheduling_config.spot or node.scheduling_config.preemptible or (request is not None and "spot" in request)
    )
    reserved = node.scheduling_config.reserved or (request is not None and bool(request.reservation_name))
    symptoms = [
        f"{enum_name(symptom, 'symptom_type').lower()} on worker {symptom.worker_id}" for symptom in node.symptoms
    ]
    return Slice(
        project,
        zone,
        name,
        status,
        state,
        "" if health == "HEALTH_UNSPECIFIED" else health,
        _accelerator_type(node),
        node.accelerator_config.topology,
        node.runtime_version,
        _price_class(node.labels, spot=spot, reserved=reserved),
        queued,
        node.queued_resource,
        tuple(Worker(endpoint.ip_address, endpoint.access_config.external_ip) for endpoint in _first_endpoints(node)),
        dict(node.labels),
        dict(node.metadata),
        identity=str(node.id),
        created=_created(node),
        why="; ".join(filter(None, (node.health_description, *symptoms[-2:]))),
        stopped=state == "STOPPED",  # no preemption leaves this state
        multislice=node.multislice_node or _is_multislice(request),
    )


def enum_name(message: Message, field: str) -> str:
    """Return an enumeration value's name; its number if newer than Google's library."""
    raw = type(message).pb(message)
    number = getattr(raw, field)
    enum_value = raw.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return enum_value.name if enum_value is not None else str(number)


def _accelerator_type(node: Node) -> str:
    """Return the accelerator type of a node, such as ``v3-32``.

    For a node that was requested with a topology, return the generation.
    """
    if node.accelerator_type:
        return node.accelerator_type
    kind = enum_name(node.accelerator_config, "type_")
    return {"TYPE_UNSPECIFIED": "", "V5LITE_POD": "v5litepod"}.get(kind, kind.lower())


def _is_multislice(request: QueuedResource | None) -> bool:
    """Return whether a request is for several slices."""
    specs = request.tpu.node_spec if request is not None else ()
    return len(specs) > 1 or any("multislice_params" in spec for spec in specs)


def _first_endpoints(node: Node) -> list[Message]:
    """Return one endpoint for each worker.

    The service lists all network interfaces of a worker one after the other.
    """
    return list(node.network_endpoints)[:: max(1, len(node.network_configs))]


def _price_class(labels: Mapping[str, str], *, spot: bool, reserved: bool) -> str:
    """Return the price class; our label has flex-start, which API v2 does not report."""
    if PRICE_LABEL in labels:
        return labels[PRICE_LABEL]
    return "spot" if spot else "reserved" if reserved else "on demand"


def from_request(request: QueuedResource) -> Slice:
    """Return a request without a node as a slice."""
    project, zone, name = split(request.name)
    spec = request.tpu.node_spec[0] if request.tpu.node_spec else None
    state = enum_name(request.state, "state")
    labels = dict(spec.node.labels) if spec is not None else {}
    return Slice(
        project,
        zone,
        spec.node_id if spec is not None and spec.node_id else name,
        _REQUEST_STATES.get(state, SliceStatus.UNKNOWN),
        state,
        accelerator_type=_accelerator_type(spec.node) if spec is not None else "",
        topology=spec.node.accelerator_config.topology if spec is not None else "",
        runtime_version=spec.node.runtime_version if spec is not None else "",
        price_class=_price_class(labels, spot="spot" in request, reserved=bool(request.reservation_name)),
        queued=state,
        request=request.name,
        labels=labels,
        node=False,
        created=_created(request),
        why=" ".join(request.state.failed_data.error.message.split()),
        multislice=_is_multislice(request),
    )


def _created(message: Message) -> float | None:
    """Return the creation time in UTC seconds."""
    return message.create_time.timestamp() if "create_time" in message else None


def split(resource: str) -> tuple[str, str, str]:
    """Split ``projects/P/locations/Z/nodes/N`` into P, Z, N."""
    words = resource.split("/")
    return words[1], words[3], words[-1]
