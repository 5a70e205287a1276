"""Faults that a test plants in a simulated service."""

from __future__ import annotations

import dataclasses
import re
import threading

from simulators.object_stores.bucket_objects import RefusedError


@dataclasses.dataclass
class Fault:
    """Fault of the next ``times`` requests whose method and path (with query) match, ``after`` so many of them.

    ``kind``: a status code (429, 503, ...), answered instead; ``"truncate"``: the answer breaks off in the middle of
    its body; ``"garble"``: one byte of its body is another; ``"close"``: the connection closes before an answer, but
    the request has its effect; ``"drop"``: the same, without effect; ``"hang"``: no answer, until the client gives up.
    """

    method: str
    path: str  # regular expression, searched for
    kind: int | str
    times: int = 1
    message: str = "planted"  # with a status code
    after: int = 0
    code: str = ""  # the service's name of the error: ``reason`` of Cloud Storage, ``Code`` of S3


class PlantedFaults:
    """Base of a server: the faults that wait, and all requests that arrived."""

    lock: threading.Lock

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []  # (method, path with query), in the order of arrival

    def fault(self, method: str, path: str) -> str | RefusedError | None:
        """Return the planted fault of this request, and use it up."""
        with self.lock:
            self.requests.append((method, path))
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    if fault.after:
                        fault.after -= 1
                        continue
                    fault.times -= 1
                    if isinstance(fault.kind, int):
                        return RefusedError(fault.kind, fault.message, fault.code)
                    return fault.kind
        return None


def garbled(data: bytes) -> bytes:
    """Return the bytes with one of them changed, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :] if data else data
