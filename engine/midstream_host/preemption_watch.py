"""Preemption notices of this machine's cloud, polled beside an engine.

Standard library only.
"""

from __future__ import annotations

import threading

from midstream_core.cloud_notices import Source, sources
from midstream_core.google_metadata import PRODUCT

POLL_INTERVAL = 3.0  # seconds


class PreemptionNotices:
    """Poller of the cloud's metadata server, on a thread of its own once started."""

    def __init__(self, interval: float = POLL_INTERVAL, product: str = PRODUCT) -> None:
        self._interval, self._product = interval, product
        self._in_force: dict[str, list[str]] = {}
        self._new: list[str] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start to poll. No effect on a machine without a metadata server."""
        by_cloud = sources(self._product)
        if by_cloud:
            threading.Thread(target=self._poll, args=(by_cloud,), name="notices", daemon=True).start()

    def take(self) -> str:
        """Return the next notice, each one once; empty if there is none."""
        with self._lock:
            return self._new.pop(0) if self._new else ""

    def _poll(self, by_cloud: dict[str, Source]) -> None:
        pause = threading.Event()
        while True:
            for cloud, read in by_cloud.items():
                notices = read()
                if notices is None:
                    continue  # an answer that is missing withdraws nothing
                before = self._in_force.get(cloud, [])
                with self._lock:
                    self._new += [notice for notice in notices if notice not in before]
                self._in_force[cloud] = notices  # a notice that is withdrawn and comes again is new
            pause.wait(self._interval)
