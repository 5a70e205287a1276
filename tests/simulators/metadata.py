"""Google's metadata server, as midstream and jax ask it: notices of an end, a worker's place in its slice."""

from __future__ import annotations

from support.loopback import Loopback, Quiet

INSTANCE = "/computeMetadata/v1/instance/"


class MetadataServer(Loopback):
    """``values`` are its answers, by path below ``instance/``; ``address`` is what GCE_METADATA_HOST names."""

    def __init__(self, **values: str) -> None:
        super().__init__(_Handler, "metadata")
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE", **values}
        self.asked: list[str] = []


class _Handler(Quiet):
    def do_GET(self) -> None:
        self.server_of.asked.append(self.path)
        found = self.server_of.values.get(self.path.removeprefix(INSTANCE).partition("?")[0])
        good = found is not None and self.headers.get("Metadata-Flavor") == "Google"
        body = (found or "").encode() if good else b""
        self.send_response(200 if good else 404)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
