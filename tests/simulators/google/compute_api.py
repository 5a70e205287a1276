"""The Compute Engine API on loopback: machines, groups, templates, policies, operations; states by the clock.

The unmodified google-cloud-compute clients talk to it. ``MIDSTREAM_COMPUTE_ENDPOINT`` names it.

    with ComputeServer() as server:
        server.faults.append(Fault("POST instances"))             # the next creation of a machine gets no answer
        server.errors.append(("QUOTA_EXCEEDED", "..."))           # how the operation of the next creation ends
        server.delay = 0.05                                       # seconds in each state
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.loopback import Loopback, Quiet

Json = dict[str, Any]
STATES = ("PROVISIONING", "STAGING", "RUNNING")
CREATED = "2026-11-25T00:00:00.000-08:00"
PAGE = 2  # entries of a listing: every client has to turn pages
_PATH = re.compile(r"/compute/v1/projects/([^/]+)(?:/(zones|regions)/([^/]+)|/(global))?(?:/(.*))?")


@dataclasses.dataclass
class Fault:
    """The answer of the next ``times`` calls whose ``METHOD collection`` matches. ``late``: after their effect."""

    call: str
    status: int = 503
    reason: str = "backendError"
    message: str = "planted"
    times: int = 1
    late: bool = False


class RefusedError(Exception):
    """The error that a call is answered with."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclasses.dataclass
class _Operation:
    value: Json
    due: float
    finish: Callable[[], None]
    error: tuple[str, str] | None = None


class ComputeServer(Loopback):
    """One project's worth of resources, by ``scope/collection/name``. Everything is changed under its lock."""

    def __init__(self) -> None:
        super().__init__(_Handler, "compute-api")
        self.lock = threading.RLock()
        self.clock: Callable[[], float] = time.monotonic
        self.delay = 0.02
        self.resources: dict[str, Json] = {}
        self.operations: dict[str, _Operation] = {}
        self.faults: list[Fault] = []
        self.errors: list[tuple[str, str]] = []  # of the next creations of machines
        self.calls: list[str] = []
        self.created: list[str] = []  # every resource that ever was
        self.attributes: dict[str, dict[str, str]] = {}  # machine -> what it publishes below hostkeys/
        self.project_metadata: dict[str, str] = {}
        self.addresses: list[str] = []  # of the next machines; then 10.0.0.N
        self.on_metadata: Callable[[str, dict[str, str]], None] = lambda name, metadata: None
        self._due: dict[str, float] = {}  # machine -> when its state changes
        self._numbers = itertools.count(1)

    @property
    def environment(self) -> dict[str, str]:
        return {"MIDSTREAM_COMPUTE_ENDPOINT": self.address}

    def names(self) -> list[str]:
        """Return ``collection/name`` of everything that exists."""
        with self.lock:
            self.advance()
            return sorted("/".join(key.split("/")[-2:]) for key in self.resources)

    def instance(self, name: str) -> Json:
        return next(value for key, value in self.resources.items() if key.endswith(f"/instances/{name}"))

    def preempt(self, name: str) -> None:
        """Stop a machine, as a preemption does."""
        with self.lock:
            self.instance(name)["status"] = "TERMINATED"

    # ------------------------------------------------------------------------------------------------- the clock

    def advance(self) -> None:
        """Bring everything into the state that the clock says."""
        now = self.clock()
        for operation in list(self.operations.values()):
            if operation.value["status"] != "DONE" and operation.due <= now:
                operation.value["status"] = "DONE"
                if operation.error is not None:
                    code, message = operation.error
                    operation.value["error"] = {"errors": [{"code": code, "message": message}]}
                operation.finish()
        for key, due in list(self._due.items()):
            instance = self.resources.get(key)
            if instance is None or instance["status"] not in STATES[:2]:
                self._due.pop(key)
            elif due <= now:
                instance["status"] = STATES[STATES.index(instance["status"]) + 1]
                self._due[key] = due + self.delay
        for key, group in list(self.resources.items()):
            if "/instanceGroupManagers/" in key and not group.get("_deleting"):
                self._fill(key, group)

    def _fill(self, key: str, group: Json) -> None:
        """Create the machines that a group lacks; without capacity it tries again and again."""
        scope = key.partition("/instanceGroupManagers/")[0]
        members: list[str] = group.setdefault("_members", [])
        while len(members) < int(group.get("targetSize", 0)):
            if self.errors:
                group["_error"] = self.errors[0]
                group["_tries"] = group.get("_tries", 0) + 1
                if group["_tries"] > 3:  # there is capacity again
                    self.errors.pop(0)
                return
            group.pop("_error", None)
            name = f"{group['baseInstanceName']}-{next(self._numbers):04x}"
            template = next(
                v
                for k, v in self.resources.items()
                if k.endswith(group["instanceTemplate"].split("/")[-1]) and "/instanceTemplates/" in k
            )
            body = json.loads(json.dumps(template["properties"]))
            created_by = {"key": "created-by", "value": f"projects/1/zones/z/instanceGroupManagers/{group['name']}"}
            body.setdefault("metadata", {}).setdefault("items", []).append(created_by)
            self._put_instance(f"{scope}/instances/{name}", name, body)
            members.append(name)

    # ------------------------------------------------------------------------------------------------ operations

    def _operate(
        self, scope: str, finish: Callable[[], None], error: tuple[str, str] | None = None, kind: str = "insert"
    ) -> Json:
        name = f"operation-{next(self._numbers)}"
        value = {"name": name, "status": "RUNNING", "operationType": kind, "id": str(next(self._numbers))}
        self.operations[f"{scope}/operations/{name}"] = _Operation(value, self.clock() + self.delay, finish, error)
        return value

    def _put_instance(self, key: str, name: str, body: Json) -> None:
        number = next(self._numbers)
        address = self.addresses.pop(0) if self.addresses else f"10.0.{number >> 8}.{number & 255}"
        interfaces = body.get("networkInterfaces") or [{}]
        for index, each in enumerate(interfaces):
            each["networkIP"] = address if index == 0 else f"10.{index}.0.{number & 255}"
            if index == 0 and each.get("accessConfigs"):
                each["accessConfigs"][0]["natIP"] = (
                    address if address.startswith("127.") else f"203.0.113.{number & 255}"
                )
        metadata = body.setdefault("metadata", {})
        metadata["fingerprint"] = "Zm9v"
        own = {"name": name, "id": str(number), "status": STATES[0], "creationTimestamp": CREATED}
        self.resources[key] = {**body, **own, "networkInterfaces": interfaces}
        self.created.append(key)
        self._due[key] = self.clock() + self.delay
        self.on_metadata(name, {item["key"]: item["value"] for item in metadata.get("items", [])})

    # ------------------------------------------------------------------------------------------------- requests

    def answer(self, method: str, address: str, body: Json) -> Json:
        parts = urlsplit(address)
        match = _PATH.fullmatch(parts.path)
        if match is None:
            raise RefusedError(404, "notFound", f"no such address {parts.path}")
        project, kind, where, is_global, rest = match.groups()
        scope = f"{project}/{f'{kind}/{where}' if kind else 'global' if is_global else 'project'}"
        words = (rest or "").split("/")
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        call = f"{method} {words[2] if len(words) > 2 else words[0] or 'project'}"
        with self.lock:
            self.calls.append(call)
            self.advance()
            fault = next((each for each in self.faults if each.times and re.fullmatch(each.call, call)), None)
            if fault is not None:
                fault.times -= 1
                if not fault.late:
                    raise RefusedError(fault.status, fault.reason, fault.message)
            found = self._answer(method, scope, words, query, body)
            if fault is not None:
                raise RefusedError(fault.status, fault.reason, fault.message)
            return found

    def _answer(self, method: str, scope: str, words: list[str], query: Json, body: Json) -> Json:
        collection, name, action = (*words, "", "", "")[:3]
        if not collection:
            items = [{"key": key, "value": value} for key, value in self.project_metadata.items()]
            return {"name": scope.split("/")[0], "commonInstanceMetadata": {"items": items}}
        if collection == "operations":
            return self.operations[f"{scope}/operations/{name}"].value
        key = f"{scope}/{collection}/{name or body.get('name', '')}"
        if method == "POST" and not name:
            return self._insert(scope, collection, key, body)
        if method == "GET" and not name:
            return self._page(f"{scope}/{collection}/", query)
        if key not in self.resources:
            raise RefusedError(404, "notFound", f"The resource '{key}' was not found")
        if action == "listManagedInstances":
            return self._managed(scope, self.resources[key])
        if action == "getGuestAttributes":
            items = [{"namespace": "hostkeys", "key": k, "value": v} for k, v in self.attributes.get(name, {}).items()]
            if not items:
                raise RefusedError(404, "notFound", "The resource 'hostkeys/' of type 'Guest Attribute' was not found.")
            return {"queryPath": "hostkeys/", "queryValue": {"items": items}}
        if action == "setMetadata":
            self.resources[key]["metadata"] = body
            self.on_metadata(name, {item["key"]: item["value"] for item in body.get("items", [])})
            return self._operate(scope, lambda: None, kind="setMetadata")
        if method == "DELETE":
            return self._delete(scope, collection, name, key)
        return {k: v for k, v in self.resources[key].items() if not k.startswith("_")}

    def _insert(self, scope: str, collection: str, key: str, body: Json) -> Json:
        if key in self.resources:
            raise RefusedError(409, "alreadyExists", f"The resource '{key}' already exists")
        if collection == "instances":
            error = self.errors.pop(0) if self.errors else None
            self._put_instance(key, body["name"], {**body, "machineType": f"https://x/{body['machineType']}"})

            def ended() -> None:
                if error is not None:
                    self.resources.pop(key, None)

            return self._operate(scope, ended, error)
        if collection == "instanceGroupManagers":
            names = (body["instanceTemplate"], body["resourcePolicies"]["workloadPolicy"])
            for each in names:
                if not any(known.endswith("/".join(each.split("/")[-2:])) for known in self.resources):
                    raise RefusedError(400, "resourceNotFound", f"The resource '{each}' is not ready")
        self.resources[key] = {
            **body,
            "id": str(next(self._numbers)),
            "creationTimestamp": CREATED,
        }
        self.created.append(key)
        return self._operate(scope, lambda: None)

    def _delete(self, scope: str, collection: str, name: str, key: str) -> Json:
        if collection in ("instanceTemplates", "resourcePolicies"):
            users = [value for known, value in self.resources.items() if "/instanceGroupManagers/" in known]
            if any(f"{collection}/{name}" in json.dumps(user) for user in users):
                raise RefusedError(400, "resourceInUseByAnotherResource", f"The resource '{key}' is in use")
        resource = self.resources[key]
        members = [f"{scope}/instances/{member}" for member in resource.get("_members", [])]
        resource["_deleting"] = True
        for each in [key, *members]:
            if each in self.resources and "/instances/" in each:
                self.resources[each]["status"] = "STOPPING"

        known = {each: self.resources.get(each) for each in [key, *members]}

        def remove() -> None:
            for each, before in known.items():
                if self.resources.get(each) is before:  # a later one of the name stays
                    self.resources.pop(each, None)

        return self._operate(scope, remove, kind="delete")

    def _managed(self, scope: str, group: Json) -> Json:
        found: list[Json] = []
        for member in group.get("_members", []):
            if f"{scope}/instances/{member}" in self.resources:
                found.append({"instance": f"https://x/{scope}/instances/{member}", "name": member})
        if "_error" in group:
            code, message = group["_error"]
            errors = {"errors": [{"code": code, "message": message}]}
            found.append({"instance": "https://x/instances/missing", "lastAttempt": {"errors": errors}})
        return {"managedInstances": found}

    def _page(self, prefix: str, query: Json) -> Json:
        names = sorted(key for key in self.resources if key.startswith(prefix))
        first = int(query.get("pageToken", "0"))
        items = [{k: v for k, v in self.resources[key].items() if not k.startswith("_")} for key in names]
        more = {"nextPageToken": str(first + PAGE)} if names[first + PAGE :] else {}
        return {"items": items[first : first + PAGE], **more}


class _Handler(Quiet):
    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        try:
            status, value = 200, self.server_of.answer(self.command, self.path, body)
        except RefusedError as error:
            errors = [{"reason": error.reason, "message": error.message, "domain": "global"}]
            status, value = error.status, {"error": {"code": error.status, "message": error.message, "errors": errors}}
        self.send_json(status, value)

    do_GET = do_POST = do_DELETE = _serve


@pytest.fixture
def compute_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeServer]:
    """A simulated service, which midstream's clients use during the test."""
    with ComputeServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server
