"""Google's metadata server, as midstream and jax ask it: notices of an end, a worker's place in its slice."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

INSTANCE = "/computeMetadata/v1/instance/"


class MetadataServer:
    """On a free port of 127.0.0.1. ``values`` are its answers, by path below ``instance/``."""

    def __init__(self, **values: str) -> None:
        self.values = {"preempted": "FALSE", "maintenance-event": "NONE", **values}
        self.asked: list[str] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"server_of": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name="metadata", daemon=True)

    def __enter__(self) -> MetadataServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """HOST:PORT: what GCE_METADATA_HOST names."""
        return f"127.0.0.1:{self._http.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server_of: MetadataServer  # set in a subclass, one for each server

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

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at ``asked`` instead."""
