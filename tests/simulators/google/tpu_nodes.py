"""TPU nodes and queued resources in memory, with faults on demand.

States change by the clock: each takes ``Nodes.delay`` seconds, whether or not a client looks. Tests choose the delay,
or replace the clock.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.cloud import tpu_v2

State, QueuedState = tpu_v2.Node.State, tpu_v2.QueuedResourceState.State
STOCKOUT = 'There is no more capacity in the zone "{zone}"; you can try in another zone'
QUOTA = "Quota 'TPUV3sPodPerProjectPerZoneForTPUAPI' exhausted. Limit 0 in zone {zone}"
DELETION = 0.02  # seconds that a deletion or an update takes
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
    due: float  # by the clock of `Nodes`
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
        self.clock: Callable[[], float] = time.monotonic
        self.delay = 0.02  # seconds in each state of a creation
        self.unlisted = 0.0  # seconds after a request in which no look finds what it creates
        self.interfaces = 1  # network interfaces of each worker
        self.outcomes: list[Outcome] = []  # of the next creations; used up
        self.created: list[str] = []  # every node that ever was, to count what was paid for
        self.metadata_refusals = 0  # updates of metadata that are answered with a conflict
        self._listed: dict[str, float] = {}  # resource -> when looks find it
        self._due: dict[str, float] = {}  # queued resource -> when its state changes
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------------------------------------------------ nodes

    def create(self, parent: str, name: str, node: tpu_v2.Node) -> Operation:
        full = f"{parent}/nodes/{name}"
        if full in self.nodes:
            raise RefusedError(grpc.StatusCode.ALREADY_EXISTS, f"Resource '{full}' already exists")
        outcome = self.outcomes.pop(0) if self.outcomes else None
        self._listed[full] = self.clock() + self.unlisted
        self._put(full, node)
        return self._operate(full, "create", lambda: self._ready(full), outcome)

    def _put(self, full: str, node: tpu_v2.Node) -> None:
        made = tpu_v2.Node(node)
        made.name, made.state, made.id = full, State.CREATING, next(self._numbers)
        self.nodes[full] = made
        self.created.append(full)

    def make_ready(self, full: str) -> tpu_v2.Node:
        """End a node's creation now: nothing changes the node later."""
        for operation in self.operations.values():
            if operation.target == full and not operation.done:
                self._end(operation)
        return self.nodes[full]

    def _ready(self, full: str) -> tpu_v2.Node:
        node = self.nodes[full]
        workers = self.workers.get(full.rpartition("/")[2]) or self._imagined(node)
        endpoints = []
        for worker in workers:
            access = tpu_v2.AccessConfig(external_ip=worker.external)
            endpoints.append(tpu_v2.NetworkEndpoint(ip_address=worker.internal, port=8470, access_config=access))
            for number in range(1, self.interfaces):  # the others of the same machine follow at once
                other = f"10.{number}.{worker.internal.partition('.')[2].partition('.')[2]}"
                endpoints.append(tpu_v2.NetworkEndpoint(ip_address=other, port=8470))
        node.network_endpoints = endpoints
        if self.interfaces > 1:
            node.network_configs = [tpu_v2.NetworkConfig(network=f"n{number}") for number in range(self.interfaces)]
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
        node = self.nodes[full]
        return self._operate(full, "delete", lambda: _remove(self.nodes, full, node), None)

    def node(self, full: str) -> tpu_v2.Node:
        if full not in self.nodes or self.clock() < self._listed.get(full, 0.0):
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
        self._listed[full] = self.clock() + self.unlisted
        self._due[full] = self.clock() + self.delay
        return self._operate(full, "create", lambda: made, None, delay=0.0)

    def queue(self, full: str) -> tpu_v2.QueuedResource:
        if full not in self.queued or self.clock() < self._listed.get(full, 0.0):
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"Resource '{full}' was not found")
        return self.queued[full]

    def _advance_queue(self, full: str) -> None:
        """Bring a request into its next state: accepted, waiting, provisioning, active; or failed."""
        queued = self.queued[full]
        self._due[full] += self.delay
        state, spec = queued.state.state, queued.tpu.node_spec[0]
        node = f"{spec.parent}/nodes/{spec.node_id}"
        if state == QueuedState.ACCEPTED:
            self._queued_state(queued, QueuedState.WAITING_FOR_RESOURCES)
        elif state == QueuedState.WAITING_FOR_RESOURCES:
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
            if node in self.nodes:
                self._ready(node)

    def advance(self) -> None:
        """Bring everything into the state that the clock says."""
        now = self.clock()
        for operation in list(self.operations.values()):
            if not operation.done and operation.due <= now:
                self._end(operation)
        ended = (QueuedState.ACTIVE, QueuedState.FAILED, QueuedState.DELETING, QueuedState.SUSPENDED)
        for full in list(self.queued):
            while full in self.queued and self.queued[full].state.state not in ended and self._due[full] <= now:
                self._advance_queue(full)

    def _queued_state(self, queued: tpu_v2.QueuedResource, state: int) -> None:
        queued.state = tpu_v2.QueuedResourceState(state=state)

    def dequeue(self, full: str, force: bool) -> Operation:
        queued = self.queue(full)
        nodes = [f"{spec.parent}/nodes/{spec.node_id}" for spec in queued.tpu.node_spec]
        if any(node in self.nodes for node in nodes) and not force:
            raise RefusedError(grpc.StatusCode.FAILED_PRECONDITION, "the queued resource has nodes; use force")
        queued.state = tpu_v2.QueuedResourceState(state=QueuedState.DELETING)

        before = {node: self.nodes[node] for node in nodes if node in self.nodes}

        def remove() -> None:
            _remove(self.queued, full, queued)
            for name, node in before.items():
                _remove(self.nodes, name, node)

        return self._operate(full, "delete", remove, None)

    # ------------------------------------------------------------------------------------------------ operations

    def _operate(
        self, target: str, verb: str, finish: Callable[[], Any], outcome: Outcome | None, delay: float | None = None
    ) -> Operation:
        location = "/".join(target.split("/")[:4])
        name = f"{location}/operations/operation-{next(self._numbers)}"
        usual = 2 * self.delay if verb == "create" else DELETION
        due = self.clock() + (usual if delay is None else delay)
        self.operations[name] = operation = Operation(name, target, verb, due, outcome, finish)
        self.advance()
        return operation

    def operation(self, name: str) -> Operation:
        if name not in self.operations:
            raise RefusedError(grpc.StatusCode.NOT_FOUND, f"no operation {name}")
        return self.operations[name]

    def _end(self, operation: Operation) -> None:
        operation.done = True
        if operation.outcome is not None:
            operation.outcome = dataclasses.replace(
                operation.outcome, message=_filled(operation.outcome.message, operation.target)
            )
            if operation.outcome.leaves is None:
                self.nodes.pop(operation.target, None)
            elif operation.target in self.nodes:
                self.nodes[operation.target].state = State(operation.outcome.leaves)
        else:
            operation.response = operation.finish()


def _remove(known: dict[str, Any], name: str, resource: Any) -> None:
    """Remove a resource; a later one of its name stays."""
    if known.get(name) is resource:
        known.pop(name)


def _filled(message: str, full: str) -> str:
    return message.replace("{zone}", full.split("/")[3])
