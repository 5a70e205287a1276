"""A copy of objects that become known one after the other: each goes over streams that are open already."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import Any

from midstream.errors import MidstreamError
from midstream.remote.copy import allowlist
from midstream.remote.copy.allowlist import CHECKPOINTS
from midstream.transfer.copy_settings import of_hosts
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError, shown
from midstream.transfer.progress import Meter
from midstream.transfer.report import Progress
from midstream.transfer.route import Route, probe
from midstream.transfer.stream import Events
from midstream.transfer.stream_pool import Load, Sending
from midstream.transfer.target_session import new_generation

ENDING = 30.0  # seconds that its thread may take to end the streams


@dataclass(frozen=True)
class _Generation:
    """What a copy needs to know of the target's side: whole objects are named by those who receive them."""

    target: Endpoint
    generation: str

    def landed(self, ranges: Sequence[Sequence[Any]]) -> None:
        raise AssertionError(f"{ranges[:1]}: objects of a feed go whole")


class Feed:
    """Sends objects (``{path, size, sha256}``) of checkpoints from one directory to another as they are added. Each is
    hashed while it flows, and has its name there only with the right hash; there is no manifest, and whoever writes one
    waits for the disk first. About ``bytes_total`` bytes in ``objects_total`` objects are to come.

    A thread of its own does the work. After an error nothing more is sent; what has arrived stays."""

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        bytes_total: int,
        objects_total: int,
        progress: Callable[[Progress], None] | None = None,
    ):
        self._source, self._target = source, target
        self._events: Events = Queue()
        self._cancel = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self.sent: dict[str, str] = {}  # path -> SHA-256 of all that was added
        self._meter = Meter(bytes_total, objects_total, progress)
        self._settings = of_hosts(source.host, target.host)
        self._expected = max(1, bytes_total)
        self._load: Load | None = None
        self._sending: Sending | None = None
        self._early: list[tuple[Sequence[dict[str, Any]], bool]] = []  # added before there was a way
        self._adding = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)
        self._thread.start()

    def add(self, objects: Sequence[dict[str, Any]], *, last: bool = False) -> None:
        """Send these, too. ``last``: there is no more after them. TransferError where one is no part of a checkpoint:
        then none of them is sent."""
        try:
            objects = allowlist.check_all(CHECKPOINTS, list(objects))
        except allowlist.NotAllowed as error:
            raise TransferError(
                f"{self._source.host.name} names what does not belong to a checkpoint: {error}",
                f"look at what answers on {self._source.host.name}",
                error.path,
            ) from None
        self.sent.update({entry["path"]: entry["sha256"] for entry in objects})
        with self._adding:
            if self._sending is None or self._load is None:
                self._early.append((objects, last))
            else:
                self._sending.add(self._load, objects, last=last)

    @property
    def bytes_sent(self) -> int:
        """That have arrived."""
        return self._meter.bytes_sent

    def wait(self, seconds: float) -> bool:
        """Whether everything up to the last object is verified at the target, after ``seconds`` at the latest.
        TransferError, LostContact, and whatever else ended it."""
        if not self._over.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def close(self) -> None:
        """End the streams, if they are still open. Idempotent."""
        self._cancel.set()
        self._thread.join(ENDING)

    def _work(self) -> None:
        try:
            link = probe(self._source.host, self._target.host, self._settings)
            route = Route(self._source, self._target, link, self._settings, CHECKPOINTS)
            load = Load(route, deque(), self._expected)
            staged = _Generation(self._target, new_generation())
            limit = self._settings.rate_limit
            sending = Sending(
                staged, self._events, [load], self._meter, explain=self._explain, rate_limit=limit, cancel=self._cancel
            )
            with self._adding:
                self._load, self._sending = load, sending
                for objects, last in self._early:
                    sending.add(load, objects, last=last)
            sending.run(set())
        except BaseException as error:  # noqa: BLE001  raised where it is waited for
            self._error = error
        finally:
            self._over.set()

    def _explain(self, path: str, what: str) -> MidstreamError:
        return TransferError(
            f"object {shown(path)} changed on its way from {self._source} to {self._target}: {what}",
            "run it again",
            path,
        )
