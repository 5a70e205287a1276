"""What was asked of the running engine, by signal or by order, and how all its processes come to agree on it.

Each process holds a vector of int32 with what it knows at a step boundary; the element-wise maximum over all processes
is what everyone acts on, at the same step, any number of times. Whatever differs between processes (signals, clocks,
how far a save is) goes through it; whatever does not is decided by each for itself.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine import records
from midstream_engine.processes.rendezvous import ALONE, Processes

log = logging.getLogger(__name__)

# Places in the vector.
SAVES, STOPS, ORDER, EPOCH, DUE, BUSY, FAILED, UNREADABLE = range(8)


class Signals:
    """Counts SIGUSR1 (save and go on) and SIGTERM (save and stop)."""

    def __init__(self) -> None:
        self.saves = 0
        self.stops = 0

    def install(self) -> None:
        """Take the signals over; only the main thread may."""
        signal.signal(signal.SIGUSR1, self._save)
        signal.signal(signal.SIGTERM, self._stop)

    @staticmethod
    def ignore() -> None:
        """Nothing is left to be asked. The interpreter, as it ends, would give the signals back their default: to kill
        what has done all that it should."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)

    def _save(self, number: int, frame: object) -> None:
        self.saves += 1

    def _stop(self, number: int, frame: object) -> None:
        self.stops += 1


class CommandFile:
    """``command.json``, looked at once a step: a stat, and a read only where it changed."""

    def __init__(self, path: str):
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.order: records.Command | None = None
        self.poll()

    def poll(self) -> records.Command | None:
        """The newest order that could be read."""
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return self.order
        if (status.st_mtime_ns, status.st_ino) != self._seen:
            self._seen = (status.st_mtime_ns, status.st_ino)
            try:
                order = records.Command.read(self._path)
            except records.RecordError as error:
                log.error("order not read: %s", error)
                return self.order
            self.take(order)
        return self.order

    def take(self, order: records.Command) -> None:
        """An order that another process has read."""
        if self.order is None or order.sequence > self.order.sequence:
            self.order = order


@dataclass(frozen=True)
class Known:
    """What one process knows at a step boundary, or what all agree on: the largest of each."""

    epoch: int = 0  # of the fence that it sees
    due: bool = False  # the checkpointer wants a save; process 0's clock alone decides
    busy: bool = False  # a save is still in flight
    failed: int = 0  # how the save that has ended went: 0 well, else ``saving.NOT_SAVED`` or ``saving.FENCED``
    unreadable: bool = False  # the fence cannot be read: nothing is saved meanwhile


@dataclass(frozen=True)
class Wanted:
    """What is to be done at this step boundary."""

    save: bool = False
    stop: bool = False
    order: records.Command | None = None  # the one to carry out, which no earlier boundary has
    known: Known = Known()  # what all processes agree on


class Requests:
    """Collects requests and says what is to be done; each request is answered once."""

    def __init__(self, signals: Signals, orders: CommandFile, processes: Processes = ALONE):
        self._signals, self._orders = signals, orders
        self._processes = processes
        order = orders.order
        # What the attempt was started with (a restore, say) is carried out by starting.
        started = order.sequence if order is not None and order.action in records.STARTS else 0
        self._done = np.array([0, 0, started], np.int32)
        self._answered = [0, 0]  # signals of this process that are in ``_done``
        self._told = started  # newest order that this process has told the others
        self._ahead: tuple[Any, list[int]] | None = None
        self._agree: Agreement | None = None

    def ahead(self, known: Known) -> None:
        """Several processes: begin to agree on what the next boundary will act on, while the devices are at a step."""
        if self._processes.count > 1:
            self._ahead = self._submit(known)

    def look(self, known: Known | None = None) -> Wanted:
        """Ask once at each step boundary; ``known``: what this process knows, of no effect after :meth:`ahead`."""
        known = known or Known()
        begun, self._ahead = self._ahead or self._submit(known), None
        vector, signals = begun
        agreed = vector if self._agree is None else self._agree.result(vector)
        fresh = agreed[: len(self._done)] > self._done
        self._done = np.maximum(self._done, agreed[: len(self._done)])
        self._answered = signals
        new = self._order(int(agreed[ORDER])) if fresh[ORDER] else None
        action = new.action if new else ""
        return Wanted(
            save=bool(fresh[SAVES]) or action == records.SAVE,
            stop=bool(fresh[STOPS]) or action == records.STOP,
            order=new,
            known=Known(
                int(agreed[EPOCH]),
                bool(agreed[DUE]),
                bool(agreed[BUSY]),
                int(agreed[FAILED]),
                bool(agreed[UNREADABLE]),
            ),
        )

    def _submit(self, known: Known) -> tuple[Any, list[int]]:
        order = self._orders.poll()
        serial = order.sequence if order else 0
        signals = [self._signals.saves, self._signals.stops]
        # One more than all have agreed on, where this process was asked again: so no signal hides behind another's.
        asked = [done + (now > seen) for done, now, seen in zip(self._done, signals, self._answered, strict=False)]
        mine = np.array([*asked, serial, known.epoch, known.due, known.busy, known.failed, known.unreadable], np.int32)
        if self._processes.board is None:
            return mine, signals
        if order is not None and serial > self._told:
            self._told = serial
            self._processes.board.post(f"order-{serial}", json.dumps(order.to_json()).encode())
        if self._agree is None:
            self._agree = Agreement(len(mine), self._processes)
        return self._agree.begin(mine), signals

    def _order(self, serial: int) -> records.Command | None:
        """The agreed order, from this host's file or from a process whose host has it."""
        order, board = self._orders.order, self._processes.board
        if board is not None and (order is None or order.sequence != serial):
            order = records.Command.from_json(json.loads(board.take_any(f"order-{serial}")), f"order {serial}")
            self._orders.take(order)
            self._told = max(self._told, serial)
        return order


class Agreement:
    """The element-wise maximum of vectors (int32 [length]) over all processes: a program of its own beside the step."""

    def __init__(self, length: int, processes: Processes):
        import jax
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        mesh = Mesh(np.array(jax.devices()), ("everyone",))
        self._shape = (len(jax.devices()), length)
        self._each = NamedSharding(mesh, PartitionSpec("everyone"))
        everywhere = NamedSharding(mesh, PartitionSpec())
        vectors = jax.ShapeDtypeStruct(self._shape, np.int32, sharding=self._each)
        compiled = jax.jit(lambda rows: rows.max(axis=0), out_shardings=everywhere).lower(vectors).compile()
        self._program = processes.consensus("agreement", compiled)

    def begin(self, mine: np.ndarray) -> Any:
        """Hand this process's vector to its devices, and start."""
        import jax

        rows = jax.make_array_from_callback(self._shape, self._each, lambda index: mine[None])
        return self._program(rows)

    @staticmethod
    def result(begun: Any) -> np.ndarray:
        return np.asarray(begun)
