"""Nodes of an attempt that share its run directory.

Node 0 has the trainer's inputs, metrics and checkpoints. The others wait for the inputs, follow its status, and end
with it. Each node's driver writes a status; that is all they know of each other.
"""

from __future__ import annotations

import os
import posixpath
import time
from typing import Optional

from midstream_core import records
from midstream_host.driver.attempt_place import AttemptPlace, EndedEarlyError
from midstream_host.driver.signals import POLL_INTERVAL, STOPS, wait_for_signal

PLACED = "inputs-placed"  # in the attempt's directory, once node 0 has placed files and checkpoint
INPUTS_TIMEOUT = 3600.0  # seconds in which node 0 copies a checkpoint of any size
LEFT_AFTER = 60.0  # seconds after the end of node 0 in which a trainer ends by itself
LOOK_INTERVAL = 1.0  # seconds between two looks at the other nodes


class AttemptGroup:
    """The nodes of one attempt, as one of them sees them."""

    def __init__(self, place: AttemptPlace, node: int, nodes: int, left_after: float = LEFT_AFTER) -> None:
        self._place, self._node, self._nodes, self._left_after = place, node, nodes, left_after
        self._placed = posixpath.join(place.files.dir, PLACED)
        self._looked = 0.0
        self._first_ended: Optional[float] = None  # since when node 0 is known to have ended

    @property
    def is_first(self) -> bool:
        """Whether this is node 0."""
        return self._node == 0

    def announce_inputs(self) -> None:
        """Announce to the other nodes that the inputs are placed. Raises OSError."""
        if self.is_first and self._nodes > 1:
            records.write_bytes(self._placed, b"")

    def wait_for_inputs(self) -> None:
        """Wait on another node until node 0 has placed files and checkpoint.

        Raises:
            EndedEarlyError: Node 0 has ended or takes too long, or a signal arrives.
        """
        deadline = time.monotonic() + INPUTS_TIMEOUT
        while not os.path.exists(self._placed):
            if wait_for_signal() in STOPS:
                raise EndedEarlyError("stopped before node 0 had placed the checkpoint")
            first = self._status(0)
            if first is not None and first.state in records.ENDED:
                raise EndedEarlyError("node 0 ended before the trainer was started: {}".format(first.message))
            if self._was_killed(0):
                raise EndedEarlyError("the driver of node 0 was killed before the trainer was started")
            if time.monotonic() > deadline:
                raise EndedEarlyError("node 0 has not placed the inputs within {:.0f} s".format(INPUTS_TIMEOUT))

    def first_status(self) -> Optional[records.Status]:
        """Return the status of node 0; None where it cannot be read now."""
        return self._status(0)

    def check(self) -> None:
        """Raise EndedEarlyError where another node has failed.

        The trainer here would wait for that node for good.
        """
        if self._nodes == 1 or time.monotonic() - self._looked < LOOK_INTERVAL:
            return
        self._looked = time.monotonic()
        if self._first_ended is None and not self.is_first and self._has_ended(0):
            self._first_ended = time.monotonic()
        for number in range(self._nodes):
            if number == self._node:
                continue
            status = self._status(number)
            if status is not None and status.state == records.FAILED:
                raise EndedEarlyError("node {} has failed: {}".format(number, status.message))
            if self._was_killed(number):
                raise EndedEarlyError("the driver of node {} was killed".format(number))

    def was_left(self) -> bool:
        """Whether node 0 ended so long ago that the trainer here does not end by itself."""
        return self._first_ended is not None and time.monotonic() - self._first_ended > self._left_after

    def is_stopping(self) -> bool:
        """Whether node 0 has begun to stop its trainer, or has ended."""
        first = self._status(0)
        return first is not None and first.state in (records.STOPPING, *records.ENDED)

    def wait_ended(self, seconds: float) -> None:
        """Wait on node 0 until no other node has a trainer, by their last status.

        Raises:
            EndedEarlyError: One has not ended within ``seconds``.
        """
        deadline = time.monotonic() + seconds
        waiting = list(range(1, self._nodes))
        while True:
            waiting = [number for number in waiting if not self._has_ended(number)]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise EndedEarlyError("the trainer of node {} still runs".format(", ".join(map(str, waiting))))
            time.sleep(POLL_INTERVAL)

    def _has_ended(self, number: int) -> bool:
        status = self._status(number)
        return status is not None and status.state in records.ENDED

    def _was_killed(self, number: int) -> bool:
        """Whether a supervisor reports the exit of a driver whose status does not."""
        # In this order: a driver writes its last status before it exits.
        return os.path.exists(self._place.files.exit(number)) and not self._has_ended(number)

    def _status(self, number: int) -> Optional[records.Status]:
        try:
            return records.Status.read_or_none(self._place.files.status(number))
        except (OSError, records.RecordError):  # the shared disk hangs: it is read again
            return None
