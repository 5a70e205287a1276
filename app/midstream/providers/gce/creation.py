"""Requests for the creation and deletion of slices on Compute Engine.

One machine is one instance. Several machines with a topology are a workload policy, an instance template and a managed
instance group, created in this order and deleted in the other; none of them is left where one could not be created.
API: https://cloud.google.com/compute/docs/tpus/create-tpu-mig-multi-host-slice
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable
from typing import Any

from midstream.fleet.gce_target import ComputeTarget
from midstream.fleet.machine_type import machine_of
from midstream.fleet.quantities import parse_duration
from midstream.fleet.reservation import reservation_parts
from midstream.providers.gce import lookup as machine_lookup
from midstream.providers.gce.client import ComputeClients, call, region_of
from midstream.providers.gce.errors import explained, operation_error
from midstream.providers.provider import (
    PRICE_LABEL,
    TARGET_LABEL,
    TOKEN_LABEL,
    ErrorKind,
    Polling,
    ProviderError,
    Slice,
    SliceStatus,
)
from midstream.providers.service_types import Message
from midstream.providers.slice_labels import label, labels_of, split_path
from midstream_core.json_types import JsonValue

MIN_MACHINE_WAIT = 90  # seconds, which Compute Engine demands
SETTLE_TIMEOUT = 60.0  # seconds that a policy or a template may take
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
RESERVATION_KEY = "compute.googleapis.com/reservation-name"
_IMAGES = {
    "tpu7x": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2404-amd64-tpu-tpu7x",
    "v5p": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
    "v6e": "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e",
}


class ComputeService:
    """One slice of Compute Engine; a `creation.Service`.

    A service without ``target`` can only look up and delete the slice.

    Args:
        clients: Clients of the API.
        name: Name of the target in the fleet file.
        target: The target.
        path: ``PROJECT/ZONE/NAME``.
        ssh_keys: Lines of the machines' metadata that permit our key; empty: none.
    """

    def __init__(
        self, clients: ComputeClients, name: str, target: ComputeTarget | None, path: str, ssh_keys: str = ""
    ) -> None:
        self._clients, self._name, self._target, self.path, self._ssh_keys = clients, name, target, path, ssh_keys
        self._project, self._zone, self._slice = split_path(path)
        self._region = region_of(self._zone)
        self._operations: list[tuple[str, str]] = []  # scope, name: of requests that have not ended yet
        self.partial = False
        self.text = f"{target.kind}, {target.price_class}" if target is not None else ""
        group = target is not None and target.topology is not None
        what = "instance-groups managed" if group else "instances"
        self.by_hand = f"gcloud compute {what} delete {self._slice} --zone={self._zone} --project={self._project}"

    def find(self) -> Slice | None:
        slice_ = machine_lookup.find(self._clients, self._project, self._zone, self._slice)
        requested = any(scope == "zone" for scope, _ in self._operations)
        if slice_ is not None and slice_.state == machine_lookup.INCOMPLETE and requested:
            return dataclasses.replace(slice_, status=SliceStatus.CREATING)  # its group is not listed yet
        return slice_

    # ------------------------------------------------------------------------------------------------ create

    def start(self, token: str) -> None:
        target = self._target
        assert target is not None
        labels = {**labels_of(self._name, target, token), PRICE_LABEL: label(target.price_class)}
        with explained(f"{self._name} cannot be created", self._project, self._zone):
            if target.topology is None:
                instance = machine_message(target, labels, self._ssh_keys, self._zone)
                instance.name = self._slice
                words = {"project": self._project, "zone": self._zone, "instance_resource": instance}
                self._insert("zone", self._clients.instances.insert_unary, request_id=_request_id(token), **words)
                return
            self._start_group(target, labels, token)

    def _start_group(self, target: ComputeTarget, labels: dict[str, str], token: str) -> None:
        from google.cloud import compute_v1

        described = {**labels, machine_lookup.ZONE_LABEL: self._zone, "midstream-topology": target.topology or ""}
        description = machine_lookup.description_of(described)
        policy = compute_v1.ResourcePolicy(
            name=self._slice,
            description=description,
            workload_policy=compute_v1.ResourcePolicyWorkloadPolicy(
                type_="HIGH_THROUGHPUT", accelerator_topology=target.topology
            ),
        )
        template = compute_v1.InstanceTemplate(
            name=self._slice,
            description=description,
            properties=template_properties(machine_message(target, labels, self._ssh_keys, "")),
        )
        place = {"project": self._project, "zone": self._zone}
        regional = {"project": self._project, "region": self._region}
        clients = self._clients
        self._part(
            "region", clients.policies.insert_unary, clients.policies.get, token,
            {**regional, "resource_policy_resource": policy}, {**regional, "resource_policy": self._slice},
        )  # fmt: skip
        self._part(
            "global", clients.templates.insert_unary, clients.templates.get, token,
            {"project": self._project, "instance_template_resource": template},
            {"project": self._project, "instance_template": self._slice},
        )  # fmt: skip
        self._part(
            "zone", clients.groups.insert_unary, clients.groups.get, token,
            {**place, "instance_group_manager_resource": self._group(target, description)},
            {**place, "instance_group_manager": self._slice},
        )  # fmt: skip

    def _group(self, target: ComputeTarget, description: str) -> object:
        from google.cloud import compute_v1

        machine = machine_of(target.machine_type)
        count = machine.machines(target.topology) if machine is not None else None
        group = compute_v1.InstanceGroupManager(
            name=self._slice,
            description=description,
            base_instance_name=self._slice[:50],
            target_size=count,
            instance_template=f"projects/{self._project}/global/instanceTemplates/{self._slice}",
            resource_policies=compute_v1.InstanceGroupManagerResourcePolicies(
                workload_policy=f"projects/{self._project}/regions/{self._region}/resourcePolicies/{self._slice}"
            ),
            # A machine that was preempted stays as evidence; a new one under its name would have lost the run.
            instance_lifecycle_policy=compute_v1.InstanceGroupManagerInstanceLifecyclePolicy(
                default_action_on_failure="DO_NOTHING"
            ),
        )
        if target.price_class in ("flex-start", "reserved"):  # the other classes have no all-or-nothing mode
            group.target_size_policy = compute_v1.InstanceGroupManagerTargetSizePolicy(mode="BULK")
        return group

    def _part(
        self,
        scope: str,
        insert: Callable[..., object],
        get: Callable[..., Message],
        token: str,
        request: dict[str, Any],
        lookup: dict[str, JsonValue],
    ) -> None:
        """Create one resource of a group, and wait until the next one can refer to it.

        Raises:
            ProviderError: It was refused, or the name belongs to another's resource.
        """
        from google.api_core.exceptions import Conflict

        try:
            self._insert(scope, insert, **request)
        except Conflict:
            existing = call(get, **lookup)
            if machine_lookup.labels_in(existing.description).get(TOKEN_LABEL) != token:
                raise
        self.partial = True  # a later refusal leaves this one
        if scope != "zone":
            self._settle()

    def _settle(self) -> None:
        """Wait until the requests so far have ended.

        Raises:
            ProviderError: A request ended with an error, or there is no answer in time.
        """
        deadline, polling = time.monotonic() + SETTLE_TIMEOUT, Polling()
        while self._operations:
            try:
                error = self.failure()
            except ProviderError:
                error = None  # a look that failed
            if error is not None:
                raise error
            if self._operations and time.monotonic() > deadline:
                raise ProviderError(
                    f"{self._name} cannot be created: its policy or template is not ready after {SETTLE_TIMEOUT:.0f} s",
                    "try again",
                    ErrorKind.UNAVAILABLE,
                )
            if self._operations:
                polling.wait()

    def _insert(self, scope: str, insert: Callable[..., Message], **request: Any) -> None:
        operation = call(insert, **request)
        self._operations.append((scope, operation.name))

    def failure(self) -> ProviderError | None:
        """Return the error of the first operation that ended with one."""
        with explained(f"the operations of {self._name}", self._project, self._zone):
            for entry in list(self._operations):
                scope, name = entry
                operation = call(self._clients.operations(scope).get, operation=name, **self._scope(scope))
                if operation.status.name != "DONE":
                    continue
                self._operations.remove(entry)
                error = operation_error(operation, self._project, self._zone)
                if error is not None:
                    return error
        return None

    def _scope(self, scope: str) -> dict[str, str]:
        more = {"zone": {"zone": self._zone}, "region": {"region": self._region}, "global": {}}[scope]
        return {"project": self._project, **more}

    # ------------------------------------------------------------------------------------------------ delete

    def remove(self, slice_: Slice) -> None:
        """Request the deletion of what exists of the slice.

        The deletion of policy and template is requested once the group is deleted.
        """
        clients, place = self._clients, {"project": self._project, "zone": self._zone}
        with explained(f"{slice_.path} cannot be deleted", self._project, self._zone):
            if slice_.state != machine_lookup.INCOMPLETE:
                if self._group_exists():
                    call(clients.groups.delete_unary, instance_group_manager=self._slice, **place)
                else:
                    call(clients.instances.delete_unary, instance=self._slice, **place)
                return
            for get, delete, lookup in (
                (clients.templates.get, clients.templates.delete_unary, {"instance_template": self._slice}),
                (
                    clients.policies.get,
                    clients.policies.delete_unary,
                    {"resource_policy": self._slice, "region": self._region},
                ),
            ):
                self._remove_part(get, delete, {"project": self._project, **lookup}, slice_)

    def _group_exists(self) -> bool:
        from google.api_core.exceptions import NotFound

        try:
            call(self._clients.groups.get, project=self._project, zone=self._zone, instance_group_manager=self._slice)
        except NotFound:
            return False
        return True

    def _remove_part(
        self, get: Callable[..., Message], delete: Callable[..., Message], lookup: dict[str, Any], slice_: Slice
    ) -> None:
        """Delete a policy or a template if it is of the same creation."""
        from google.api_core.exceptions import NotFound

        try:
            resource = call(get, **lookup)
            labels = machine_lookup.labels_in(resource.description)
            if TARGET_LABEL in labels and labels.get(TOKEN_LABEL) == slice_.labels.get(TOKEN_LABEL):
                call(delete, **lookup)
        except NotFound:
            return


def machine_message(target: ComputeTarget, labels: dict[str, str], ssh_keys: str, zone: str) -> Message:
    """Return the instance that a creation requests.

    ``zone`` is empty for one in a template.
    """
    from google.cloud import compute_v1

    metadata = {"enable-guest-attributes": "TRUE", "enable-oslogin": "TRUE" if target.os_login else "FALSE"}
    if ssh_keys and not target.os_login:
        metadata["ssh-keys"] = ssh_keys
    machine = machine_of(target.machine_type)
    assert machine is not None  # checked when the fleet file is read
    interface = compute_v1.NetworkInterface(
        network=target.network or ("" if target.subnetwork else "global/networks/default")
    )
    if target.subnetwork:
        interface.subnetwork = target.subnetwork
    if target.reach == "external":
        interface.access_configs = [compute_v1.AccessConfig(name="External NAT", type_="ONE_TO_ONE_NAT")]
    boot = compute_v1.AttachedDiskInitializeParams(
        source_image=target.image or _IMAGES[machine.generation], disk_size_gb=target.boot_disk_size
    )
    place = f"zones/{zone}/machineTypes/" if zone else ""
    instance = compute_v1.Instance(
        machine_type=f"{place}{target.machine_type}",
        labels=labels,
        metadata=compute_v1.Metadata(items=[compute_v1.Items(key=key, value=value) for key, value in metadata.items()]),
        disks=[compute_v1.AttachedDisk(boot=True, auto_delete=True, initialize_params=boot)],
        network_interfaces=[interface],
        service_accounts=[compute_v1.ServiceAccount(email=target.service_account or "default", scopes=[SCOPE])],
        scheduling=scheduling_message(target),
    )
    if target.reservation:
        project, name = reservation_parts(target.reservation) or ("", "")
        full = f"projects/{project}/reservations/{name}" if project else name
        instance.reservation_affinity = compute_v1.ReservationAffinity(
            consume_reservation_type="SPECIFIC_RESERVATION", key=RESERVATION_KEY, values=[full]
        )
    else:  # otherwise a reservation that happens to fit would be used, and paid for
        instance.reservation_affinity = compute_v1.ReservationAffinity(consume_reservation_type="NO_RESERVATION")
    if target.flex_start and target.topology is None:
        wait = int(parse_duration(target.valid_until))
        instance.params = compute_v1.InstanceParams(
            request_valid_for_duration=compute_v1.Duration(seconds=max(wait, MIN_MACHINE_WAIT))
        )
    return instance


def scheduling_message(target: ComputeTarget) -> object:
    """Return how the machines are scheduled, and what becomes of them at the end.

    The end is that of their time or their capacity.
    """
    from google.cloud import compute_v1

    common = {"on_host_maintenance": "TERMINATE", "automatic_restart": False}
    if target.flex_start:
        duration = compute_v1.Duration(seconds=int(parse_duration(target.run_duration or "")))
        return compute_v1.Scheduling(
            provisioning_model="FLEX_START", instance_termination_action="DELETE", max_run_duration=duration, **common
        )
    if target.spot:  # stopped and not deleted: a machine that is preempted is evidence
        return compute_v1.Scheduling(provisioning_model="SPOT", instance_termination_action="STOP", **common)
    if target.calendar:
        return compute_v1.Scheduling(
            provisioning_model="RESERVATION_BOUND", instance_termination_action="DELETE", **common
        )
    return compute_v1.Scheduling(provisioning_model="STANDARD", on_host_maintenance="TERMINATE")


def template_properties(instance: Message) -> object:
    """Return an instance as the properties of a template."""
    from google.cloud import compute_v1

    return compute_v1.InstanceProperties(
        machine_type=instance.machine_type,
        labels=dict(instance.labels),
        metadata=instance.metadata,
        disks=list(instance.disks),
        network_interfaces=list(instance.network_interfaces),
        service_accounts=list(instance.service_accounts),
        scheduling=instance.scheduling,
        reservation_affinity=instance.reservation_affinity,
    )


def _request_id(token: str) -> str:
    """Return the same id for each call of one creation.

    The service answers a repeated call with the first result.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"midstream:{token}"))
