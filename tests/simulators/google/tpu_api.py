"""The Cloud TPU API on loopback: gRPC, the messages of google.cloud.tpu.v2, long-running operations, pages, faults.

The unmodified google-cloud-tpu client talks to it over an insecure channel, which ``MIDSTREAM_TPU_ENDPOINT`` names.

    with TpuServer() as server:
        server.workers["pod"] = [Worker("127.0.0.2", host_keys={...})]     # machines behind the node `pod`
        server.faults.append(Fault("CreateNode", grpc.StatusCode.UNAVAILABLE))
        server.outcomes.append(Outcome(message=QUOTA))                     # how the next creation ends
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from google.cloud import tpu_v2
from google.cloud.tpu_v2.types import cloud_tpu
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2, json_format
from google.rpc import status_pb2

from midstream.providers import creation, provider
from simulators.google.tpu_nodes import Nodes, Operation, RefusedError
from support.loopback import Loopback, Quiet

PAGE = 2  # entries of a listing: every client has to turn pages


@dataclasses.dataclass
class Fault:
    """The error of the next ``times`` calls whose method matches. ``late``: after they have had their effect."""

    method: str
    code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE
    message: str = "planted"
    times: int = 1
    late: bool = False
    after: int = 0  # so many matching calls are answered before


class TpuServer(Nodes):
    """The service, on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.calls: list[str] = []  # methods, in the order of arrival
        self.unreachable: list[str] = []  # locations that a listing over all of them cannot see
        self.bodies: list[dict[str, Any]] = []  # of requests in version v2alpha1, which come as JSON
        self.rest_faults: list[tuple[int, bool]] = []  # status of the next of them, and whether it has its effect
        self._rest = Rest(self)
        self._server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="tpu-api"))
        self._server.add_generic_rpc_handlers((_Handlers(self),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")

    def __enter__(self) -> TpuServer:
        self._server.start()
        self._rest.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.__exit__()
        self._server.stop(0).wait()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {"MIDSTREAM_TPU_ENDPOINT": self.endpoint, "MIDSTREAM_TPU_REST_ENDPOINT": self._rest.address}

    def called(self, method: str) -> int:
        return self.calls.count(method)

    def answer(self, method: str, request: Any) -> Any:
        with self.lock:
            self.calls.append(method)
            self.advance()
            matching = [each for each in self.faults if each.times and re.search(each.method, method)]
            fault = next((each for each in matching if not each.after), None)
            for each in matching:
                each.after = max(0, each.after - 1)
            if fault is not None:
                fault.times -= 1
                if not fault.late:
                    raise RefusedError(fault.code, fault.message)
            found = getattr(self, f"_{method}")(request)
            if fault is not None:
                raise RefusedError(fault.code, fault.message)
            return found

    def create_alpha(self, parent: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
        """Queue a request of version v2alpha1. The fields that v2 lacks are kept in ``bodies`` alone."""
        with self.lock:
            self.calls.append("CreateQueuedResource")
            self.advance()
            self.bodies.append(body)
            known = {key: value for key, value in body.items() if key not in ("provisioningModel", "runDuration")}
            message = tpu_v2.QueuedResource(
                json_format.ParseDict(known, tpu_v2.QueuedResource.pb(tpu_v2.QueuedResource()))
            )
            return {"name": self.enqueue(parent, name, message).name}

    # ------------------------------------------------------------------------------------------------- the calls

    def _CreateNode(self, request: Any) -> Any:
        return _operation(self.create(request.parent, request.node_id, request.node))

    def _GetNode(self, request: Any) -> Any:
        return tpu_v2.Node.pb(self.node(request.name))

    def _UpdateNode(self, request: Any) -> Any:
        return _operation(self.update(request.node))

    def _DeleteNode(self, request: Any) -> Any:
        return _operation(self.delete(request.name))

    def _ListNodes(self, request: Any) -> Any:
        found, token = self._page(self.nodes, request)
        return cloud_tpu.ListNodesResponse.pb(
            cloud_tpu.ListNodesResponse(nodes=found, next_page_token=token, unreachable=self._unseen(request))
        )

    def _CreateQueuedResource(self, request: Any) -> Any:
        return _operation(self.enqueue(request.parent, request.queued_resource_id, request.queued_resource))

    def _GetQueuedResource(self, request: Any) -> Any:
        return tpu_v2.QueuedResource.pb(self.queue(request.name))

    def _DeleteQueuedResource(self, request: Any) -> Any:
        return _operation(self.dequeue(request.name, request.force))

    def _ListQueuedResources(self, request: Any) -> Any:
        found, token = self._page(self.queued, request)
        return cloud_tpu.ListQueuedResourcesResponse.pb(
            cloud_tpu.ListQueuedResourcesResponse(queued_resources=found, next_page_token=token)
        )

    def _GetGuestAttributes(self, request: Any) -> Any:
        node = self.node(request.name)
        known = self.workers.get(request.name.rpartition("/")[2], ())
        wanted = [int(each) for each in request.worker_ids] or range(len(node.network_endpoints) // self.interfaces)
        each = []
        for index in wanted:
            worker = known[index] if index < len(known) else None
            items = (
                {**worker.host_keys, "hostname": worker.hostname or f"t1v-n-{node.id:x}-w-{index}"} if worker else {}
            )
            entries = [tpu_v2.GuestAttributesEntry(namespace="hostkeys", key=k, value=v) for k, v in items.items()]
            value = tpu_v2.GuestAttributesValue(items=entries)
            each.append(tpu_v2.GuestAttributes(query_path=request.query_path, query_value=value))
        return cloud_tpu.GetGuestAttributesResponse.pb(cloud_tpu.GetGuestAttributesResponse(guest_attributes=each))

    def _GetOperation(self, request: Any) -> Any:
        return _operation(self.operation(request.name))

    def _CancelOperation(self, request: Any) -> Any:
        self.operation(request.name)
        return empty_pb2.Empty()

    def _page(self, known: dict[str, Any], request: Any) -> tuple[list[Any], str]:
        parent = re.escape(request.parent).replace("/locations/\\-", "/locations/[^/]+")
        matching = [value for name, value in sorted(known.items()) if re.match(f"{parent}/", name)]
        first = int(request.page_token or 0)
        rest = matching[first + PAGE :]
        return matching[first : first + PAGE], str(first + PAGE) if rest else ""

    def _unseen(self, request: Any) -> list[str]:
        return self.unreachable if request.parent.endswith("/locations/-") else []


def _operation(operation: Operation) -> operations_pb2.Operation:
    metadata = cloud_tpu.OperationMetadata(target=operation.target, verb=operation.verb)
    found = operations_pb2.Operation(name=operation.name, done=operation.done)
    found.metadata.CopyFrom(_packed(cloud_tpu.OperationMetadata.pb(metadata)))
    if operation.done and operation.outcome is not None:
        found.error.CopyFrom(status_pb2.Status(code=operation.outcome.code, message=operation.outcome.message))
    elif operation.done:
        response = operation.response
        message = empty_pb2.Empty() if response is None else type(response).pb(response)
        found.response.CopyFrom(_packed(message))
    return found


def _packed(message: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed


_REQUESTS: dict[str, Callable[[bytes], Any]] = {
    **{
        name: getattr(cloud_tpu, f"{name}Request").deserialize
        for name in (
            "CreateNode", "GetNode", "UpdateNode", "DeleteNode", "ListNodes", "GetGuestAttributes",
            "CreateQueuedResource", "GetQueuedResource", "DeleteQueuedResource", "ListQueuedResources",
        )
    },
    "GetOperation": operations_pb2.GetOperationRequest.FromString,
    "CancelOperation": operations_pb2.CancelOperationRequest.FromString,
}  # fmt: skip
_SERVICES = ("google.cloud.tpu.v2.Tpu", "google.longrunning.Operations")


def _serialized(message: Any) -> bytes:
    return message.SerializeToString()


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, server: TpuServer) -> None:
        self._server = server

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler | None:
        service, _, method = handler_call_details.method.lstrip("/").partition("/")
        if service not in _SERVICES or method not in _REQUESTS:
            return None

        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return self._server.answer(method, request)
            except RefusedError as refusal:
                context.abort(refusal.code, refusal.message)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=_REQUESTS[method],
            response_serializer=_serialized,
        )


class Rest(Loopback):
    """The same service for requests as JSON."""

    def __init__(self, server: TpuServer) -> None:
        super().__init__(_RestHandler, "tpu-api-rest")
        self.server = server


class _RestHandler(Quiet):
    def do_POST(self) -> None:
        server: TpuServer = self.server_of.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        match = re.fullmatch(
            r"/v2alpha1/(projects/[^/]+/locations/[^/]+)/queuedResources\?queuedResourceId=(.+)", self.path
        )
        assert match is not None, self.path
        status, late = server.rest_faults.pop(0) if server.rest_faults else (200, True)
        value: dict[str, Any] = {"error": {"code": status, "message": "planted"}}
        if late:
            try:
                found = server.create_alpha(match[1], match[2], body)
                value = found if status == 200 else value
            except RefusedError as error:
                status, value = 409, {"error": {"code": 409, "message": error.message, "status": "ALREADY_EXISTS"}}
        self.send_json(status, value)


@pytest.fixture
def tpu_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuServer]:
    """A simulated service, which midstream's clients use during the test."""
    with TpuServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the simulated service often: its operations take milliseconds, and what is requested is listed soon."""
    monkeypatch.setattr(creation, "NOT_FOUND_TIME", 0.5)
    monkeypatch.setattr(provider, "FIRST_POLL_INTERVAL", 0.005)
    monkeypatch.setattr(provider, "MAX_POLL_INTERVAL", 0.05)
