"""Common base of the tests' HTTP servers: a free port, threads, and a quiet shutdown."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[Any] = set()  # addresses of clients
        self.changed = threading.Condition()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.changed:
            self.connections.add(client_address)
            self.changed.notify_all()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self.changed:
                self.connections.discard(client_address)
                self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects or is killed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Loopback:
    """Serves on 127.0.0.1 while the context is open. The handler has it as ``server_of``."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], name: str) -> None:
        self._http = _Server(("127.0.0.1", 0), type("Handler", (handler,), {"server_of": self}))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """``HOST:PORT``."""
        return f"127.0.0.1:{self._http.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def connections(self) -> frozenset[Any]:
        """Return the connections that are open or still served."""
        with self._http.changed:
            return frozenset(self._http.connections)

    def wait_served(self, others: frozenset[Any], timeout: float = 60.0) -> None:
        """Wait until everything that clients which have ended had sent is served.

        A request may have its effect after the process that sent it was killed.

        Args:
            others: Connections of other clients.
            timeout: Seconds.
        """
        with socket.create_connection(("127.0.0.1", self._http.server_address[1])) as last:
            name = last.getsockname()
            with self._http.changed:  # connections are accepted in their order
                assert self._http.changed.wait_for(lambda: name in self._http.connections, timeout)
        with self._http.changed:
            assert self._http.changed.wait_for(lambda: self._http.connections <= others, timeout)


class Quiet(BaseHTTPRequestHandler):
    """A handler that writes nothing to stderr."""

    server_of: Any  # set in a subclass, one for each server

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: tests read the server's recorded requests."""

    def send_json(self, status: int, value: Any) -> None:
        """Answer with a JSON value."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _below_the_systems_own() -> range:
    """Return ports that the system does not choose by itself for connections and for servers on port 0."""
    try:
        lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        lowest = 32768
    return range(max(2048, lowest - 20000), lowest) or range(20000, 60000)


_PORTS = _below_the_systems_own()
_numbers = itertools.count(secrets.randbelow(len(_PORTS)))


def free_port(*addresses: str) -> int:
    """Return a port that is free at the addresses (by default 127.0.0.1), each time another one.

    It stays free until a server listens there, and while that server restarts: the system gives it to no connection.
    """
    for _ in _PORTS:
        port = _PORTS[next(_numbers) % len(_PORTS)]
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):  # it is used
            for address in addresses or ("127.0.0.1",):
                stack.enter_context(socket.socket()).bind((address, port))
            return port
    raise OSError("no port is free")
