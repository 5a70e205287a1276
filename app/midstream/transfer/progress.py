"""Progress of a copy: what is done, at which rate, and when it will be complete."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from midstream.transfer.report import Progress

RATE_WINDOW = 10.0  # seconds that the rate is measured over


class Meter:
    """Counter of a copy's bytes and objects.

    Not thread-safe. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        bytes_total: int,
        objects_total: int,
        publish: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes_total = bytes_total
        self.objects_total = objects_total
        self.bytes_present = 0
        self.bytes_sent = 0
        self.objects_present = 0
        self.objects_sent = 0
        self._object = ""
        self._publish = publish
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque([(clock(), 0)])

    def present(self, path: str, size: int) -> None:
        """Count an object that the target had before."""
        self.objects_present += 1
        self.bytes_present += size
        self._object = path
        self.publish()

    def landed_before(self, count: int) -> None:
        """Count ``count`` bytes of a partial object whose hashes are right."""
        self.bytes_present += count
        self.publish()

    def begin(self) -> None:
        """Start to measure the rate."""
        self._samples = deque([(self._clock(), 0)])

    def arrived(self, count: int) -> None:
        """Count ``count`` bytes that the target has written."""
        self.bytes_sent += count
        now = self._clock()
        self._samples.append((now, self.bytes_sent))
        while len(self._samples) > 2 and self._samples[1][0] < now - RATE_WINDOW:
            self._samples.popleft()
        self.publish()

    def verified(self, path: str) -> None:
        """Count an object that was sent and verified."""
        self.objects_sent += 1
        self._object = path
        self.publish()

    @property
    def progress(self) -> Progress:
        done = self.bytes_present + self.bytes_sent
        then, before = self._samples[0]
        elapsed = self._clock() - then
        rate = (self.bytes_sent - before) / elapsed if elapsed > 0 else 0.0
        remaining = max(0, self.bytes_total - done)
        eta = 0.0 if remaining == 0 else remaining / rate if rate > 0 else None
        objects = self.objects_present + self.objects_sent
        return Progress(done, self.bytes_total, objects, self.objects_total, self._object, rate, eta)

    def publish(self) -> None:
        if self._publish is not None:
            self._publish(self.progress)
