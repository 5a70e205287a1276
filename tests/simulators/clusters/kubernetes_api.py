"""The API of a Kubernetes cluster on loopback, as much of it as the real kubectl uses for midstream.

A pod is a directory, an exec a process of this machine. Jobs and JobSets get their pods at once; they run when ``hold``
is off. Discovery, the description of the API that kubectl validates with, selectors, deletion and exec over WebSocket
are those of the real API.
https://kubernetes.io/docs/reference/kubernetes-api
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from simulators.clusters.exec_socket import PROTOCOL, ExecSocket, accept_key
from support.loopback import Loopback, Quiet

# Group and version, plural name -> kind.
RESOURCES = {
    ("v1", "pods"): "Pod",
    ("v1", "services"): "Service",
    ("batch/v1", "jobs"): "Job",
    ("jobset.x-k8s.io/v1alpha2", "jobsets"): "JobSet",
}
PATH = re.compile(r"/(?:api/(v1)|apis/([^/]+/[^/]+))/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(?:/(exec))?")


class KubernetesApi(Loopback):
    """A cluster. ``hold``: pods stay pending; ``requested``: method and path of each request."""

    def __init__(self, directory: Path) -> None:
        super().__init__(_Handler, "kubernetes-api")
        self.directory = directory
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}  # by plural, namespace, name
        self.requested: list[str] = []
        self.hold = False
        self.lock = threading.RLock()

    def kubeconfig(self) -> Path:
        """Write a kubeconfig with the context ``lab``, and return it."""
        file = self.directory / "kubeconfig"
        value = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "clusters": [{"name": "lab", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me", "namespace": "default"}}],
        }  # fmt: skip
        file.write_text(yaml.safe_dump(value))
        return file

    def pod(self, name: str, namespace: str = "default", spec: Any = None, **labels: str) -> Path:
        """Create a pod, and return its directory."""
        home = self.directory / name
        home.mkdir(exist_ok=True)
        containers = [{"name": "main"}, {"name": "side"}]
        with self.lock:
            self.objects["pods", namespace, name] = {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "namespace": namespace, "labels": labels, "uid": name},
                "spec": spec or {"containers": containers},
                "status": {"phase": "Pending" if self.hold else "Running"},
            }  # fmt: skip
        return home

    def ready(self) -> None:
        """Let all pods run."""
        self.hold = False
        with self.lock:
            for (plural, _, _), value in self.objects.items():
                if plural == "pods":
                    value["status"]["phase"] = "Running"

    def of(self, plural: str) -> list[dict[str, Any]]:
        with self.lock:
            return [value for (kind, _, _), value in self.objects.items() if kind == plural]

    def create(self, plural: str, namespace: str, value: dict[str, Any]) -> dict[str, Any]:
        name = value["metadata"]["name"]
        value["metadata"].update(namespace=namespace, uid=name, resourceVersion="1")
        with self.lock:
            self.objects[plural, namespace, name] = value
            if plural in ("jobs", "jobsets"):
                self._create_pods(plural, namespace, value)
        return value

    def _create_pods(self, plural: str, namespace: str, value: dict[str, Any]) -> None:
        spec, name, labels = value["spec"], value["metadata"]["name"], dict[str, str]()
        if plural == "jobsets":
            labels["jobset.sigs.k8s.io/jobset-name"] = name
            [job] = spec["replicatedJobs"]
            spec, name = job["template"]["spec"], f"{name}-{job['name']}-0"
        template = spec["template"]
        for index in range(spec["completions"]):
            own = {**labels, **template.get("metadata", {}).get("labels", {}), "batch.kubernetes.io/job-name": name,
                   "batch.kubernetes.io/job-completion-index": str(index)}  # fmt: skip
            self.pod(f"{name}-{index}-x7k2p", namespace, template["spec"], **own)

    def delete(self, plural: str, namespace: str, name: str) -> dict[str, Any]:
        """Remove an object, and the pods of a job with their processes."""
        with self.lock:
            value = self.objects.pop((plural, namespace, name))
            owned = [key for key in self.objects if key[0] == "pods" and key[2].startswith(f"{name}-")]
            for key in owned if plural in ("jobs", "jobsets") else ():
                del self.objects[key]
                for pid in (self.directory / key[2]).glob("pid-*"):
                    _kill(int(pid.name[4:]))
        return value


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has ended


def _matches(value: dict[str, Any], labels: str, fields: str) -> bool:
    wanted = dict(part.split("=", 1) for part in labels.replace("==", "=").split(",")) if labels else {}
    own = value["metadata"].get("labels", {})
    named = {"metadata.name": value["metadata"]["name"], "status.phase": value.get("status", {}).get("phase", "")}
    chosen = dict(part.split("=", 1) for part in fields.split(",")) if fields else {}
    return wanted.items() <= own.items() and all(named.get(field) == each for field, each in chosen.items())


class _Handler(Quiet):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server: KubernetesApi = self.server_of
        server.requested.append(f"GET {self.path}")
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        if url.path in (found := _discovery()):
            return self.send_json(200, found[url.path])
        if place := re.fullmatch(r"/api/v1/namespaces/([^/]+)", url.path):
            return self.send_json(200, {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": place[1]}})
        match = PATH.fullmatch(url.path)
        if match is None:
            return self._fail(404, "NotFound", "the server could not find the requested resource")
        version, group, namespace, plural, name, command = match.groups()
        with server.lock:
            if name is None:
                items = [
                    value
                    for (kind, place, _), value in sorted(server.objects.items())
                    if kind == plural
                    and place == namespace
                    and _matches(value, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                ]
                kind = RESOURCES[version or group, plural]
                listed = {"kind": f"{kind}List", "apiVersion": version or group, "metadata": {"resourceVersion": "1"}}
                return self.send_json(200, {**listed, "items": items})
            value = server.objects.get((plural, namespace, name))
        if value is None:
            return self._missing(plural, group, name)
        if command:
            return self._exec(value, parse_qs(url.query))
        return self.send_json(200, value)

    def do_POST(self) -> None:
        server: KubernetesApi = self.server_of
        server.requested.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        match = PATH.fullmatch(url.path)
        assert match is not None, self.path
        version, group, namespace, plural, name, command = match.groups()
        if command:  # kubectl 1.32 tries SPDY where a WebSocket was refused
            pod = server.objects.get((plural, namespace, name))
            return self._missing(plural, group, name) if pod is None else self._exec(pod, parse_qs(url.query))
        value = json.loads(body)
        kind = RESOURCES.get((version or group, plural))
        assert (value["kind"], value["apiVersion"]) == (kind, version or group), value
        if (plural, namespace, value["metadata"]["name"]) in server.objects:
            return self._fail(409, "AlreadyExists", f"{plural} {value['metadata']['name']!r} already exists")
        return self.send_json(201, server.create(plural, namespace, value))

    def do_DELETE(self) -> None:
        server: KubernetesApi = self.server_of
        server.requested.append(f"DELETE {self.path}")
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        match = PATH.fullmatch(urlsplit(self.path).path)
        assert match is not None, self.path
        _, group, namespace, plural, name, _ = match.groups()
        if (plural, namespace, name) not in server.objects:
            return self._missing(plural, group, name)
        server.delete(plural, namespace, name)
        details = {"name": name, "kind": plural, "uid": name}
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details}
        return self.send_json(200, status)

    def _exec(self, pod: dict[str, Any], query: dict[str, list[str]]) -> None:
        server: KubernetesApi = self.server_of
        container = query.get("container", ["main"])[0]
        if container not in [each["name"] for each in pod["spec"]["containers"]]:
            return self._fail(
                400, "BadRequest", f"container {container} is not valid for pod {pod['metadata']['name']}"
            )
        offered = self.headers.get("Sec-WebSocket-Protocol", "")
        if PROTOCOL not in offered:
            return self._fail(400, "BadRequest", f"unable to upgrade: {offered or 'no protocol'}")
        self.send_response(101, "Switching Protocols")
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept_key(self.headers["Sec-WebSocket-Key"]))
        self.send_header("Sec-WebSocket-Protocol", PROTOCOL)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        home = server.directory / pod["metadata"]["name"]
        ExecSocket(self.rfile, self.connection).run(query["command"], home, query.get("stdin") == ["true"])

    def _missing(self, plural: str, group: str | None, name: str) -> None:
        where = f"{plural}.{group.partition('/')[0]}" if group else plural
        self._fail(404, "NotFound", f'{where} "{name}" not found', name=name, kind=plural)

    def _fail(self, code: int, reason: str, message: str, **details: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {}, "code": code}
        self.send_json(code, {**status, "reason": reason, "message": message, "details": details})


def _discovery() -> dict[str, Any]:
    """Return the answers that describe the API, by path."""
    found: dict[str, Any] = {
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/version": {"major": "1", "minor": "37", "gitVersion": "v1.37.0"},
    }
    groups, paths = [], {}
    for version in dict.fromkeys(version for version, _ in RESOURCES):
        group, _, short = version.rpartition("/")
        place = f"/apis/{version}" if group else f"/api/{version}"
        resources, described = [], {}
        for plural, kind in ((plural, kind) for (each, plural), kind in RESOURCES.items() if each == version):
            verbs = ["create", "delete", "get", "list", "patch", "watch"]
            resources.append(
                {"name": plural, "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": verbs}
            )
            # kubectl asks whether the server checks the fields itself.
            described[f"{place}/namespaces/{{namespace}}/{plural}/{{name}}"] = {
                "patch": {
                    "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                    "responses": {"200": {"description": "OK"}},
                    "x-kubernetes-group-version-kind": {"group": group, "version": short, "kind": kind},
                }
            }
        listed = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        found[place] = listed
        paths[place[1:]] = {"serverRelativeURL": f"/openapi/v3{place}"}
        info = {"title": "Kubernetes", "version": "v1.37.0"}
        found[f"/openapi/v3{place}"] = {"openapi": "3.0.0", "info": info, "paths": described}
        if group:
            named = {"groupVersion": version, "version": short}
            groups.append({"name": group, "versions": [named], "preferredVersion": named})
    found["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    found["/openapi/v3"] = {"paths": paths}
    return found
