"""TPU nodes and queued resources in memory, with faults on demand.

Nothing depends on the clock: a creation is complete after ``Nodes.looks`` polls, so that tests choose the moment.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.cloud import tpu_v2

State, QueuedState = tpu_v2.Node.State, tpu_v2.QueuedResourceState.State
STOCKOUT = 'There is no more capacity in the zone "{zone}"; you can try in another zone'
QUOTA = "Quota 'TPUV3sPodPerProjectPerZoneForTPUAPI' exhausted. Limit 0 in zone {zone}"
CORES_A_HOST = {"v2": 8, "v3": 8, "v4": 8, "v5p": 8, "v5litepod": 4, "v6e": 4}


class RefusedError(Exception):
    """The error that a call is answered with."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


@dataclasses.dataclass(frozen=True)
class Worker:
    """A machine behind a node. ``metadata`` is called when the node's metadata changes, as a guest agent would be."""

    internal: str
    external: str = ""
    host_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)  # "ssh-ed25519" -> base64
    hostname: str = ""
    metadata: Callable[[Mapping[str, str]], None] | None = None


@dataclasses.dataclass(frozen=True)
class Outcome:
    """End of a failing creation. ``leaves``: state of the node that it leaves behind, if any."""

    code: int = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    message: str = STOCKOUT
    leaves: int | None = None


@dataclasses.dataclass
class Operation:
    name: str
    target: str
    verb: str
    looks: int
    outcome: Outcome | None = None
    finish: Callable[[], Any] = lambda: None
    done: bool = False
    response: Any = None


class Nodes:
    """All projects of the service. The caller holds its lock."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.nodes: dict[str, tpu_v2.Node] = {}
        self.queued: dict[str, tpu_v2.QueuedResource] = {}
        self.workers: dict[str, list[Worker]] = {}  # node's last name -> machines that stand for its workers
        self.operations: dict[str, Operation] = {}
        self.looks = 2  # at a creation, until it is done
        self.outcomes: list[Outcome] = []  # of the next creations; used up
        self.created: list[str] = []  # every node that ever was, to count what was paid for
        self.metadata_refusals = 0  # updates of metadata that are answered with a conflict
        self._waiting: dict[str, int] = {}  # queued resource -> looks that it has been waiting
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------------------------------------------ nodes

    def create(self, parent: str, name: str, node: tpu_v2.Node) -> Operation:
        full = f"{parent}/nodes/{name}"
        if full in self.nodes:
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{full}' already exists")
        outcome = self.outcomes.pop(0) if self.outcomes else None
        self._put(full, node)
        return self._operate(full, "create", lambda: self._ready(full), outcome)

    def _put(self, full: str, node: tpu_v2.Node) -> None:
        made = tpu_v2.Node(node)
        made.name, made.state, made.id = full, State.CREATING, next(self._numbers)
        self.nodes[full] = made
        self.created.append(full)

    def _ready(self, full: str) -> tpu_v2.Node:
        node = self.nodes[full]
        workers = self.workers.get(full.rpartition("/")[2]) or self._imagined(node)
        node.network_endpoints = [
            tpu_v2.NetworkEndpoint(
                ip_address=worker.internal, port=8470, access_config=tpu_v2.AccessConfig(external_ip=worker.external)
            )
            for worker in workers
        ]
        node.state, node.health = State.READY, tpu_v2.Node.Health.HEALTHY
        self._set_metadata(full)
        return node

    def _imagined(self, node: tpu_v2.Node) -> list[Worker]:
        kind, _, size = node.accelerator_type.partition("-")
        count = math.ceil(int(size or 8) / CORES_A_HOST.get(kind, 8))
        return [Worker(f"10.0.0.{index + 2}", f"203.0.113.{index + 2}") for index in range(count)]

    def update(self, node: tpu_v2.Node) -> Operation:
        known = self.node(node.name)
        if self.metadata_refusals:
            self.metadata_refusals -= 1
            raise RefusedError(grpc.StatusCode.ABORTED, "there is another operation on this resource")
        known.metadata = dict(node.metadata)
        return self._operate(node.name, "update", lambda: self._set_metadata(node.name) or known, None)

    def _set_metadata(self, full: str) -> None:
        for worker in self.workers.get(full.rpartition("/")[2], ()):
            if worker.metadata is not None:
                worker.metadata(dict(self.nodes[full].metadata))

    def delete(self, full: str) -> Operation:
        self.node(full).state = State.DELETING
        for operation in self.operations.values():  # it cancels the creation
            if operation.target == full and not operation.done:
                operation.done, operation.outcome = True, Outcome(grpc.StatusCode.CANCELLED.value[0], "deleted")
        return self._operate(full, "delete", lambda: self.nodes.pop(full, None), None)

    def node(self, full: str) -> tpu_v2.Node:
        if full not in self.nodes:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"Resource '{full}' was not found")
        return self.nodes[full]

    def preempt(self, name: str, *, says_so: bool = True) -> None:
        """Preempt a node. ``says_so=False``: the node still reports READY, as real ones sometimes do."""
        for full, node in self.nodes.items():
            if full.rpartition("/")[2] == name and says_so:
                node.state = State.PREEMPTED
        for full, queued in self.queued.items():
            if full.rpartition("/")[2] == name:
                queued.state = tpu_v2.QueuedResourceState(state=QueuedState.SUSPENDED)

    # ----------------------------------------------------------------------------------------- queued resources

    def enqueue(self, parent: str, name: str, queued: tpu_v2.QueuedResource) -> Operation:
        full = f"{parent}/queuedResources/{name}"
        if full in self.queued:
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{full}' already exists")
        made = tpu_v2.QueuedResource(queued)
        made.name, made.state = full, tpu_v2.QueuedResourceState(state=QueuedState.ACCEPTED)
        self.queued[full] = made
        return self._operate(full, "create", lambda: made, None, looks=0)

    def queue(self, full: str) -> tpu_v2.QueuedResource:
        if full not in self.queued:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"Resource '{full}' was not found")
        return self.queued[full]

    def look_at_queue(self, full: str) -> tpu_v2.QueuedResource:
        """Advance a request by one state: accepted, waiting, provisioning, active; or failed."""
        queued = self.queue(full)
        self._waiting[full] = waited = self._waiting.get(full, 0) + 1
        state, spec = queued.state.state, queued.tpu.node_spec[0]
        node = f"{spec.parent}/nodes/{spec.node_id}"
        if state == QueuedState.ACCEPTED:
            self._queued_state(queued, QueuedState.WAITING_FOR_RESOURCES)
        elif state == QueuedState.WAITING_FOR_RESOURCES and waited >= self.looks:
            if self.outcomes:
                outcome = self.outcomes.pop(0)
                queued.state = tpu_v2.QueuedResourceState(
                    state=QueuedState.FAILED,
                    failed_data=tpu_v2.QueuedResourceState.FailedData(
                        error={"code": outcome.code, "message": _filled(outcome.message, full)}
                    ),
                )
            else:
                self._queued_state(queued, QueuedState.PROVISIONING)
                self._put(node, spec.node)
                self.nodes[node].queued_resource = full
        elif state == QueuedState.PROVISIONING:
            self._queued_state(queued, QueuedState.ACTIVE)
            self._ready(node)
        return queued

    def _queued_state(self, queued: tpu_v2.QueuedResource, state: int) -> None:
        queued.state = tpu_v2.QueuedResourceState(state=state)

    def dequeue(self, full: str, force: bool) -> Operation:
        queued = self.queue(full)
        nodes = [f"{spec.parent}/nodes/{spec.node_id}" for spec in queued.tpu.node_spec]
        if any(node in self.nodes for node in nodes) and not force:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "the queued resource has nodes; use force")
        queued.state = tpu_v2.QueuedResourceState(state=QueuedState.DELETING)

        def remove() -> None:
            self.queued.pop(full, None)
            for node in nodes:
                self.nodes.pop(node, None)

        return self._operate(full, "delete", remove, None)

    # ------------------------------------------------------------------------------------------------ operations

    def _operate(
        self, target: str, verb: str, finish: Callable[[], Any], outcome: Outcome | None, looks: int | None = None
    ) -> Operation:
        location = "/".join(target.split("/")[:4])
        name = f"{location}/operations/operation-{next(self._numbers)}"
        looks = (self.looks if verb == "create" else 2) if looks is None else looks
        self.operations[name] = operation = Operation(name, target, verb, looks, outcome, finish)
        if not looks:
            self.look(name)
        return operation

    def look_at(self, full: str) -> None:
        """Advance a node or a request by one poll, whether or not its operation is polled."""
        for operation in list(self.operations.values()):
            if operation.target == full and not operation.done:
                self.look(operation.name)

    def look(self, name: str) -> Operation:
        """Advance an operation by one poll."""
        if name not in self.operations:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"no operation {name}")
        operation = self.operations[name]
        operation.looks -= 1
        if operation.done or operation.looks > 0:
            return operation
        operation.done = True
        if operation.outcome is not None:
            operation.outcome = dataclasses.replace(
                operation.outcome, message=_filled(operation.outcome.message, operation.target)
            )
            if operation.outcome.leaves is None:
                self.nodes.pop(operation.target, None)
            else:
                self.nodes[operation.target].state = State(operation.outcome.leaves)
        else:
            operation.response = operation.finish()
        return operation


def _filled(message: str, full: str) -> str:
    return message.replace("{zone}", full.split("/")[3])
