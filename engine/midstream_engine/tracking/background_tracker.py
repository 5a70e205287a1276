"""Tracker on a thread of its own: training neither waits for it nor fails with it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from midstream_core.json_types import JsonObject

log = logging.getLogger(__name__)
WAITING = 10_000  # rows that wait for a slow tracker before new ones are dropped
PATIENCE = 60.0  # seconds that the end of training waits for a tracker


class Tracker(Protocol):
    """Interface of a tracker. Its methods may raise any exception."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record the metrics of one step."""
        ...

    def finish(self) -> None:
        """Deliver what is buffered and close."""
        ...


class BackgroundTracker:
    """Creates, feeds and closes a tracker on one thread.

    The first failure, and the first row that is dropped because the tracker is too slow, is logged as one warning each.
    After a failure the tracker receives no more rows.
    """

    def __init__(
        self, name: str, make: Callable[[], Tracker], *, waiting: int = WAITING, patience: float = PATIENCE
    ) -> None:
        self.name, self._make, self._patience = name, make, patience
        self._rows: queue.Queue[Mapping[str, Any] | None] = queue.Queue(waiting)
        self._failed = threading.Event()
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def log(self, row: JsonObject) -> None:
        """Queue a row. Never blocks."""
        if self._failed.is_set():
            return
        try:
            self._rows.put_nowait(row)
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                log.warning("tracker %s is too slow: rows are dropped (metrics.jsonl has them all)", self.name)

    def finish(self) -> None:
        """Deliver the queued rows and close the tracker, within ``patience`` seconds."""
        if not self._failed.is_set():
            try:
                self._rows.put(None, timeout=self._patience)
            except queue.Full:
                log.warning("tracker %s does not accept its rows; it is not closed", self.name)
                return
        self._thread.join(self._patience)
        if self._thread.is_alive():
            log.warning("tracker %s did not close within %.0f s", self.name, self._patience)

    def _work(self) -> None:
        try:
            tracker = self._make()
            while (row := self._rows.get()) is not None:
                tracker.log(numbers(row), int(row["global_step"]))
            tracker.finish()
        except BaseException as error:  # noqa: BLE001 (other people's code; some raise SystemExit)
            self._failed.set()
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
            log.warning("tracker %s failed, metrics go to metrics.jsonl alone: %s", self.name, text)


def numbers(row: JsonObject) -> dict[str, float]:
    """Return the numbers of ``row``, without its step."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "global_step"
    }
