"""Targets: what all have, and what all have whose machines a provider creates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import draccus

from midstream_core.accelerator_types import AcceleratorType

Cluster = dict[str, str | None]  # context, namespace and kubeconfig of an entry of the fleet file
REACHES = ("external", "internal", "iap")  # of the workers of a TPU slice


@dataclass(frozen=True)
class TargetConfig(draccus.ChoiceRegistry):
    """Settings of a target: one or more hosts that form one mesh."""

    @property
    def cluster(self) -> Cluster | None:
        """The Kubernetes cluster that has its pods; None where it has none."""
        return None


@dataclass(frozen=True)
class SliceTarget(TargetConfig):
    """Settings of machines that a provider creates and deletes together.

    Each of the machines is a host.
    """

    project: str = ""
    zone: str = ""
    name: str = ""  # of the slice; empty: the target's name
    create: bool = False  # permits midstream to create it: spot, reserved, flex-start or on demand
    spot: bool = False
    reserved: bool = False
    reservation: str | None = None  # NAME, or PROJECT/NAME of another project's
    calendar: bool = False  # the reservation is one of calendar mode: the machines are deleted at its end
    flex_start: bool = False  # waits for capacity, and is deleted after run_duration
    run_duration: str | None = None  # of flex_start: 30m, 6h, 7d
    valid_until: str = "1h"  # longest wait for its creation: 30m, 6h, 2d
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None  # identity of the workers, which accesses gs://
    reach: str = "external"  # one of REACHES: the addresses that SSH connects to
    user: str | None = None  # on the workers; None: the local user's name
    os_login: str | None = None  # the account whose OS Login profile is used
    identity_file: str = "~/.ssh/google_compute_engine"
    port: int = 22
    price_per_hour: float | None = None  # of the complete slice
    worker: dict[str, Any] = field(
        default_factory=dict
    )  # further settings of each worker: root, python, setup, env, ...
    hosts: list[str] = field(default_factory=list)  # its workers, added once the slice is found

    @property
    def price_class(self) -> str:
        """One of ``spot``, ``reserved``, ``flex-start`` and ``on demand``."""
        if self.flex_start:
            return "flex-start"
        return "spot" if self.spot else "reserved" if self.reserved or self.reservation else "on demand"

    @property
    def kind(self) -> str:
        """Machine or accelerator type, with the topology where it has one."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """True if the provider keeps the request in a queue until there is capacity."""
        return self.flex_start

    @property
    def has_metadata(self) -> bool:
        """Whether its machines have a metadata server, by which jax finds them all."""
        return False

    @property
    def is_virtual(self) -> bool:
        """Whether its workers have virtual devices instead of real ones."""
        return bool(self.worker.get("devices"))

    @property
    def device_count(self) -> int | None:
        """The devices that jax finds on all workers; None if the type names none."""
        return None

    @property
    def accelerators(self) -> AcceleratorType | None:
        """Its accelerators; None if its type is not in the table."""
        return None

    def check(self, where: str) -> None:
        """Check the fields of its own type. UsageError, which names ``where``."""
