"""Common base of the simulated object stores: requests, byte ranges, uploads in progress and planted faults."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from email.utils import formatdate
from typing import Generic, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

from simulators.object_stores.bucket_objects import Buckets, RefusedError
from simulators.planted_faults import PlantedFaults, garbled
from support.loopback import Loopback, Quiet

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body


class _Upload(Protocol):
    bucket: str


U = TypeVar("U", bound=_Upload)


class ObjectService(Loopback, Buckets, PlantedFaults, Generic[U]):
    """Buckets in memory, served by threads of this process.

    Attributes:
        uploads: Uploads in progress, by their identity.
        ranges: Of the requests for contents of objects; empty where one has none.
        clock: Seconds that the server's clock is ahead.
        closing: Set when the server ends; requests that hang return.
    """

    def __init__(self, handler: type[ObjectHandler], name: str) -> None:
        Buckets.__init__(self)
        Loopback.__init__(self, handler, name)
        PlantedFaults.__init__(self)
        self.closing = threading.Event()
        self.ranges: list[str] = []
        self.clock = 0.0
        self.uploads: dict[str, U] = {}
        self._ids = itertools.count(1)

    def __exit__(self, *raised: object) -> None:
        self.closing.set()
        super().__exit__(*raised)

    def now(self) -> float:
        """Return the time of the server's clock, in seconds."""
        return time.time() + self.clock

    def begin_upload(self, upload: U) -> str:
        """Add an upload; return its identity."""
        with self.lock:
            self.bucket(upload.bucket)
            identity = f"upload-{next(self._ids)}"
            self.uploads[identity] = upload
        return identity


class ObjectHandler(Quiet):
    """Reads requests, applies the planted faults and sends answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together

    def answer(self, path: str, query: dict[str, str], body: bytes) -> Answer:
        """Return the answer to a request. RefusedError if it is refused."""
        raise NotImplementedError

    def refused(self, refusal: RefusedError) -> Answer:
        """Return the answer to a request that is refused."""
        raise NotImplementedError

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def body(self) -> bytes:
        """Return the body of the request."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return bytes(found)

    def byte_range(self, total: int) -> tuple[int, int] | None:
        """Return first byte and end of the requested range; None if the request has none.

        RefusedError if the range begins at or after `total` bytes.
        """
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not wanted or not (wanted[1] or wanted[2]):
            return None
        first = int(wanted[1]) if wanted[1] else max(0, total - int(wanted[2]))
        last = min(int(wanted[2]), total - 1) if wanted[1] and wanted[2] else total - 1
        if first >= total:
            raise RefusedError(
                416, f"The requested range {wanted[0]} is not satisfiable: {total} bytes", "InvalidRange"
            )
        return first, last + 1

    def _serve(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.flush()
        body = self.body()
        fault = self.server_of.fault(self.command, self.path)
        if fault in ("drop", "hang"):
            if fault == "hang":
                self.server_of.closing.wait()
            self.close_connection = True
            return
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
        try:
            if isinstance(fault, RefusedError):
                raise fault
            status, headers, data = self.answer(parts.path, query, body)
        except RefusedError as refusal:
            status, headers, data = self.refused(refusal)
        if fault == "close":
            self.close_connection = True
            return
        self._send(status, headers, garbled(data) if fault == "garble" else data, cut=fault == "truncate")

    def _send(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool) -> None:
        self.send_response_only(status)
        self.send_header("Date", formatdate(self.server_of.now(), usegmt=True))
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers and status != 204:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client has closed the connection
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            self.wfile.flush()
        if cut:
            self.close_connection = True
