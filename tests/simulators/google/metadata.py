"""Google's metadata server as midstream and jax use it: preemption notices, a worker's position in its slice."""

from __future__ import annotations

from support.loopback import Loopback, Quiet

INSTANCE = "/computeMetadata/v1/instance/"


class MetadataServer(Loopback):
    """``values``: answers by path below ``instance/``; ``address``: value of GCE_METADATA_HOST."""

    def __init__(self, **values: str) -> None:
        super().__init__(_Handler, "metadata")
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE", **values}
        self.requested: list[str] = []


class _Handler(Quiet):
    def do_GET(self) -> None:
        self.server_of.requested.append(self.path)
        found = self.server_of.values.get(self.path.removeprefix(INSTANCE).partition("?")[0])
        good = found is not None and self.headers.get("Metadata-Flavor") == "Google"
        body = (found or "").encode() if good else b""
        self.send_response(200 if good else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
