"""Requests that create and delete TPU slices, as nodes or as queued resources.

Flex-start and reservations of calendar mode exist only in version v2alpha1 of the API, which Google's library does not
have: those requests are sent as JSON. https://cloud.google.com/tpu/docs/reference/rest/v2alpha1
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from midstream.fleet.quantities import parse_duration
from midstream.fleet.reservation import reservation_parts
from midstream.fleet.tpu_target import TpuTarget
from midstream.providers.google_errors import explained, translate
from midstream.providers.google_rest import CALL_TIMEOUT, post
from midstream.providers.provider import ErrorKind, ProviderError, Slice
from midstream.providers.service_types import Message
from midstream.providers.slice_labels import labels_of, split_path
from midstream.providers.tpu import lookup as slice_lookup
from midstream.providers.tpu.client import REST_ENDPOINT
from midstream_core.json_types import JsonValue

if TYPE_CHECKING:
    from google.cloud.tpu_v2 import TpuClient

ANY_RESERVATION = "-"
GENERATIONS = ("v2", "v3", "v4", "v5e", "v5p", "v6e")  # of the Cloud TPU API; later ones are Compute Engine's
_TYPE_NAMES = {"v5e": "V5LITE_POD", "v5litepod": "V5LITE_POD"}


class TpuService:
    """One slice of the Cloud TPU API; a `creation.Service`.

    A service without ``target`` can only look up and delete the slice.
    """

    def __init__(self, client: TpuClient, name: str, target: TpuTarget | None, path: str) -> None:
        self._client, self._name, self._target, self.path = client, name, target, path
        self._project, self._zone, self._node = split_path(path)
        self._parent = f"projects/{self._project}/locations/{self._zone}"
        self._operation: Message = None
        self.text, self.partial = "", False
        if target is not None:
            price_class = f"{target.price_class}, queued" if target.queued else target.price_class
            self.text = f"{target.kind}, {price_class}"
        self.by_hand = (
            f"gcloud compute tpus tpu-vm delete {self._node} --zone={self._zone} --project={self._project}"
            if target is None or not target.queued
            else f"gcloud compute tpus queued-resources delete {self._node} --force --zone={self._zone} "
            f"--project={self._project}"
        )

    def find(self) -> Slice | None:
        return slice_lookup.find(self._client, self._project, self._zone, self._node, retry=False)

    def start(self, token: str) -> None:
        target = self._target
        assert target is not None
        with explained(f"{self._name} cannot be created", self._project, self._zone):
            node = node_message(self._name, target, token)
            if not target.queued:
                self._operation = self._client.create_node(
                    parent=self._parent, node_id=self._node, node=node, timeout=CALL_TIMEOUT
                )
                return
            request = request_message(target, self._parent, self._node, node)
            if target.flex_start or target.calendar:
                self._start_alpha(request, target)
                return
            self._operation = self._client.create_queued_resource(
                parent=self._parent, queued_resource_id=self._node, queued_resource=request, timeout=CALL_TIMEOUT
            )

    def _start_alpha(self, request: object, target: TpuTarget) -> None:
        body = alpha_body(request, target)
        path = f"/v2alpha1/{self._parent}/queuedResources?queuedResourceId={self._node}"
        post(REST_ENDPOINT, "tpu.googleapis.com", path, body)

    def failure(self) -> ProviderError | None:
        """Return the operation's error, if it ended with one.

        The operation is polled once, without the library's retries.
        """
        from google.api_core.exceptions import from_grpc_status

        if self._operation is None:
            return None
        operations = self._client.transport.operations_client
        with explained(f"the operation of {self._name}", self._project, self._zone):
            now = operations.get_operation(self._operation.operation.name, retry=None, timeout=CALL_TIMEOUT)
        if not now.done or not now.error.code:
            return None
        own = from_grpc_status(now.error.code, now.error.message)
        error = translate("", own, self._project, self._zone)
        return ProviderError(error.message.removeprefix(": "), error.hint, error.kind)

    def remove(self, slice_: Slice) -> None:
        with explained(f"{slice_.path} cannot be deleted", slice_.project, slice_.zone):
            if slice_.request:
                self._client.delete_queued_resource(
                    request={"name": slice_.request, "force": True}, timeout=CALL_TIMEOUT
                )
            else:
                self._client.delete_node(name=f"{self._parent}/nodes/{slice_.name}", timeout=CALL_TIMEOUT)


def request_message(target: TpuTarget, parent: str, name: str, node: object) -> Message:
    """Return the queued resource that a creation requests, as far as API v2 has it."""
    from google.cloud import tpu_v2

    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(parent=parent, node_id=name, node=node)
    request = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    if target.spot:
        request.spot = tpu_v2.QueuedResource.Spot()
    elif target.reserved or target.reservation:
        if not target.calendar:
            request.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        request.reservation_name = reservation_name(target)
    limit = {"seconds": int(parse_duration(target.valid_until))}
    request.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=limit)
    return request


def reservation_name(target: TpuTarget) -> str:
    """Return a reservation's full name; without a name, any of the project that fits."""
    project, name = reservation_parts(target.reservation or "") or ("", ANY_RESERVATION)
    return f"projects/{project or target.project}/locations/{target.zone}/reservations/{name}"


def alpha_body(request: object, target: TpuTarget) -> dict[str, JsonValue]:
    """Return a queued resource as v2alpha1 JSON, with the fields that v2 lacks."""
    from google.cloud import tpu_v2
    from google.protobuf import json_format

    body = json_format.MessageToDict(tpu_v2.QueuedResource.pb(request))
    if target.flex_start:
        seconds = int(parse_duration(target.run_duration or ""))
        return {**body, "provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": f"{seconds}s"}}
    return {**body, "provisioningModel": "RESERVATION_BOUND"}


def node_message(name: str, target: TpuTarget, token: str) -> Message:
    """Return the node that a creation requests."""
    from google.cloud import tpu_v2

    node = tpu_v2.Node(
        runtime_version=target.runtime_version,
        labels=labels_of(name, target, token),
        metadata={"enable-guest-attributes": "TRUE", **({"enable-oslogin": "TRUE"} if target.os_login else {})},
        network_config=tpu_v2.NetworkConfig(
            network=target.network or "",
            subnetwork=target.subnetwork or "",
            enable_external_ips=target.reach == "external",
        ),
    )
    if target.topology:
        kinds = tpu_v2.AcceleratorConfig.Type.__members__
        kind = _TYPE_NAMES.get(target.accelerator_type, target.accelerator_type.upper())
        if kind not in kinds or target.accelerator_type not in (*GENERATIONS, "v5litepod"):
            raise ProviderError(
                f"{name}: with a topology, accelerator_type is a generation, not {target.accelerator_type!r}",
                f"one of {', '.join(GENERATIONS)}",
                ErrorKind.INVALID,
            )
        node.accelerator_config = tpu_v2.AcceleratorConfig(type_=kinds[kind], topology=target.topology)
    else:
        node.accelerator_type = target.accelerator_type
    if not target.queued:
        node.scheduling_config = tpu_v2.SchedulingConfig(
            spot=target.spot, reserved=bool(target.reserved or target.reservation)
        )
    if target.service_account:
        scope = ["https://www.googleapis.com/auth/cloud-platform"]
        node.service_account = tpu_v2.ServiceAccount(email=target.service_account, scope=scope)
    return node
