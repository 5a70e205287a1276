"""A copy of objects that are added one after the other and sent over open streams."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Queue

from midstream.errors import MidstreamError
from midstream.printable import printable
from midstream.transfer.copy_settings import RELAY, settings_of_hosts
from midstream.transfer.direct_streams import DirectStreams, direct_streams
from midstream.transfer.endpoint import Endpoint
from midstream.transfer.errors import TransferError
from midstream.transfer.link import Link, probe
from midstream.transfer.progress import Meter
from midstream.transfer.report import Progress
from midstream.transfer.route import StreamRoute
from midstream.transfer.send_queue import SendQueue
from midstream.transfer.stream import Events
from midstream.transfer.stream_pool import StreamPool
from midstream.transfer.target_session import new_generation
from midstream_core.json_types import JsonValue
from midstream_host import allowlist
from midstream_host.allowlist import CHECKPOINTS
from midstream_host.copy_items import CopyObject

SHUTDOWN_TIMEOUT = 30.0  # seconds that the thread may take to end the streams


@dataclass(frozen=True)
class _NoStaging:
    """The staging directory of a copy without a session.

    The receivers name complete objects themselves.
    """

    target: Endpoint
    generation: str

    def landed(self, ranges: Sequence[Sequence[JsonValue]]) -> None:
        raise AssertionError(f"{ranges[:1]}: objects are not cut here")


class IncrementalCopy:
    """Sends objects (``{path, size, sha256}``) of checkpoints as they are added.

    Each is hashed in transit, and has its name at the target only with the right hash. There is no manifest; the
    program that writes one syncs the disk first. A thread does the work. After an error nothing more is sent; what has
    arrived stays.
    """

    def __init__(
        self,
        source: Endpoint,
        target: Endpoint,
        bytes_total: int,
        objects_total: int,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            source: Directory that has the objects.
            target: Directory that receives them.
            bytes_total: Bytes that will be added, about.
            objects_total: Number of objects that will be added, about.
            progress: Called with the progress, from the thread.
        """
        self._source, self._target = source, target
        self._events: Events = Queue()
        self._cancel = threading.Event()
        self._ended = threading.Event()
        self._error: BaseException | None = None
        self.sent: dict[str, str] = {}  # path -> SHA-256 of each object that was added
        self._meter = Meter(bytes_total, objects_total, progress)
        self._settings = settings_of_hosts(source.host, target.host)
        self._expected = max(1, bytes_total)
        self._queue: SendQueue | None = None
        self._pool: StreamPool | None = None
        self._waiting: list[tuple[Sequence[CopyObject], bool]] = []  # added before the route was found
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="feed", daemon=True)
        self._thread.start()

    def add(self, objects: Sequence[CopyObject], *, last: bool = False) -> None:
        """Add objects. ``last``: no objects follow.

        Raises:
            TransferError: One of them is not part of a checkpoint; none of them is sent.
        """
        try:
            objects = allowlist.check_all(CHECKPOINTS, list(objects))
        except allowlist.NotAllowedError as error:
            raise TransferError(
                f"{self._source.host.name} names an object that does not belong to a checkpoint: {error}",
                f"check which program answers on {self._source.host.name}",
                error.path,
            ) from None
        self.sent.update({entry["path"]: entry["sha256"] for entry in objects})
        with self._lock:
            if self._pool is None or self._queue is None:
                self._waiting.append((objects, last))
            else:
                self._pool.add(self._queue, objects, last=last)

    @property
    def bytes_sent(self) -> int:
        """Bytes that have arrived."""
        return self._meter.bytes_sent

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until the last object is verified at the target.

        Return whether it is.

        Raises:
            TransferError: An object is wrong, or the disk is full.
            ConnectionLostError: A connection broke.
        """
        if not self._ended.wait(seconds):
            return False
        if self._error is not None:
            raise self._error
        return True

    def close(self) -> None:
        """End the streams. Idempotent."""
        self._cancel.set()
        self._thread.join(SHUTDOWN_TIMEOUT)

    def _work(self) -> None:
        direct: DirectStreams | None = None
        try:
            generation = new_generation()
            ends, settings = (self._source, self._target), self._settings
            probing: Future[Link] = Future()
            direct = direct_streams(*ends, settings, CHECKPOINTS, generation, self._expected, probing)
            probed = settings if direct is None else replace(settings, route=RELAY)  # `direct` finds out more
            link = probe(self._source.host, self._target.host, probed)
            probing.set_result(link)
            route = StreamRoute(*ends, link, settings, CHECKPOINTS, direct)
            queue = SendQueue(route, deque(), self._expected)
            staging = _NoStaging(self._target, generation)
            limit = self._settings.bandwidth_limit
            pool = StreamPool(
                staging,
                self._events,
                [queue],
                self._meter,
                explain=self._explain,
                bandwidth_limit=limit,
                cancel=self._cancel,
            )
            with self._lock:
                self._queue, self._pool = queue, pool
                for objects, last in self._waiting:
                    pool.add(queue, objects, last=last)
            pool.run(set())
        except BaseException as error:  # noqa: BLE001  `wait` raises it
            self._error = error
        finally:
            if direct is not None:
                direct.close()
            self._ended.set()

    def _explain(self, path: str, what: str) -> MidstreamError:
        return TransferError(
            f"object {printable(path)} changed on its way from {self._source} to {self._target}: {what}",
            "run it again",
            path,
        )
