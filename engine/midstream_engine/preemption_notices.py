"""Preemption notices from Google's metadata server. Standard library only.

The notice comes 30 s before a spot machine is preempted, and earlier before maintenance that ends a machine.

https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
"""

from __future__ import annotations

import threading

from midstream_engine.shared.google_metadata import PRODUCT, metadata_server, read_metadata

POLL_INTERVAL = 3.0  # seconds
NOTICES = {"preempted": "TRUE", "maintenance-event": "TERMINATE"}  # metadata key -> prefix of a value that is a notice


class PreemptionNotices:
    """Polls the metadata server on a thread of its own, once started."""

    def __init__(self, interval: float = POLL_INTERVAL, product: str = PRODUCT) -> None:
        self._interval, self._product = interval, product
        self._reported: set[str] = set()
        self._new: list[str] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start to poll. No effect on a machine that is not Google's."""
        server = metadata_server(self._product)
        if server:
            threading.Thread(target=self._poll, args=(server,), name="notices", daemon=True).start()

    def take(self) -> str:
        """Return the next notice, each one once; empty if there is none."""
        with self._lock:
            return self._new.pop(0) if self._new else ""

    def _poll(self, server: str) -> None:
        pause = threading.Event()
        while True:
            for name, prefix in NOTICES.items():
                value = read_metadata(server, name)
                if value.upper().startswith(prefix) and name not in self._reported:
                    self._reported.add(name)
                    with self._lock:
                        self._new.append(f"{name}: {value}")
                elif value and not value.upper().startswith(prefix):
                    self._reported.discard(name)  # the event was cancelled: report the next one
            pause.wait(self._interval)
