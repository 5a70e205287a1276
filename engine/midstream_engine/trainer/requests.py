"""What was asked of the running engine, by signal or by order, and how all its processes come to agree on it.

Requests are counted, never cleared: a process compares what is agreed with what it has carried out. Each process holds
a vector of int32; the element-wise maximum over all processes is what everyone acts on, at the same step, any number of
times.
"""

from __future__ import annotations

import logging
import os
import signal
from dataclasses import dataclass

import numpy as np

from midstream_engine import records

log = logging.getLogger(__name__)

# Places in the vector.
SAVES, STOPS, ORDER = range(3)


class Signals:
    """Counts SIGUSR1 (save and go on) and SIGTERM (save and stop)."""

    def __init__(self) -> None:
        self.saves = 0
        self.stops = 0

    def install(self) -> None:
        """Take the signals over; only the main thread may."""
        signal.signal(signal.SIGUSR1, self._save)
        signal.signal(signal.SIGTERM, self._stop)

    def _save(self, number: int, frame: object) -> None:
        self.saves += 1

    def _stop(self, number: int, frame: object) -> None:
        self.stops += 1


class OrderFile:
    """``order.json``, looked at once a step: a stat, and a read only where it changed."""

    def __init__(self, path: str):
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.order: records.Order | None = None
        self.poll()

    def poll(self) -> records.Order | None:
        """The newest order that could be read."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return self.order
        if (status.st_mtime_ns, status.st_ino) != self._seen:
            self._seen = (status.st_mtime_ns, status.st_ino)
            try:
                order = records.Order.read(self._path)
            except records.RecordError as error:
                log.error("order not read: %s", error)
                return self.order
            if self.order is None or order.serial > self.order.serial:
                self.order = order
        return self.order


@dataclass(frozen=True)
class Wanted:
    """What is to be done at this step boundary."""

    save: bool = False
    stop: bool = False
    order: records.Order | None = None  # the one to carry out, which no earlier boundary has


class Requests:
    """Collects requests and says what is to be done; each request is answered once."""

    def __init__(self, signals: Signals, orders: OrderFile):
        self._signals, self._orders = signals, orders
        order = orders.order
        # What the attempt was started with (a restore, say) is carried out by starting.
        started = order.serial if order is not None and order.action in records.STARTS else 0
        self._done = np.array([0, 0, started], np.int32)

    def look(self) -> Wanted:
        """Ask once at each step boundary."""
        order = self._orders.poll()
        mine = np.array([self._signals.saves, self._signals.stops, order.serial if order else 0], np.int32)
        agreed = agree(mine)
        fresh = agreed > self._done
        self._done = np.maximum(self._done, agreed)
        new = order if fresh[ORDER] else None
        action = new.action if new else ""
        return Wanted(
            save=bool(fresh[SAVES]) or action == records.SAVE,
            stop=bool(fresh[STOPS]) or action == records.STOP,
            order=new,
        )


def agree(vector: np.ndarray) -> np.ndarray:
    """The element-wise maximum of ``vector`` (int32) over all processes."""
    import jax

    if jax.process_count() == 1:
        return vector
    from jax.experimental import multihost_utils

    return np.max(np.asarray(multihost_utils.process_allgather(vector)), axis=0)
