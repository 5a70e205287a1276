"""``status-<p>.json``: state and heartbeat of this process."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time

from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue

log = logging.getLogger(__name__)
PASSING = frozenset(
    {records.COMPILING, records.RESTORING, records.TRAINING, records.REPLAYING, records.SAVING, records.STOPPING}
)
HEARTBEAT = 1.5  # seconds; readers expect one at least every two
_PROGRESS = ("state", "step", "checkpoint", "acknowledged")


class StatusFile:
    """Writer of the status: durably at each change of state, else with the heartbeat.

    ``progress`` is the time of the last change of state, step, checkpoint or command, which the training loop makes
    and the heartbeat thread does not.

    An attempt may be started a second time, as a requeued job is: its answers to commands stay.
    """

    def __init__(
        self,
        path: str,
        *,
        run_id: str,
        attempt: int,
        epoch: int,
        num_train_steps: int,
        process: int = 0,
        processes: int = 1,
        host: str = "",
    ) -> None:
        identity = records.this_process()
        acknowledged, rejected = _answers(path, run_id, attempt)
        self._path = path
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # another one, so that training does not wait for the disk at each step
        self._status = records.Status(
            state=records.STARTING, step=0, process=process, heartbeat=time.time(), run_id=run_id, attempt=attempt,
            epoch=epoch, num_train_steps=num_train_steps, processes=processes, host=host, progress=time.time(),
            acknowledged=acknowledged, rejected=rejected,
            boot_id=identity.boot_id, pid=identity.pid, start_ticks=identity.start_ticks, machine=identity.machine,
            namespace=identity.namespace,
        )  # fmt: skip
        self._final = False  # no further change counts, even while other threads still run
        self._ended = threading.Event()
        self._write(durable=True)
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def value(self) -> records.Status:
        """The present status."""
        return self._status

    def update(self, **changes: JsonValue) -> None:
        """Change fields of the status.

        A new ``state`` is written immediately, the rest with the next heartbeat. OSError if one that waits for
        commands or ends without a failure cannot be written; a failure has its own error.
        """
        with self._lock:
            if self._final:
                return
            changed = self._change(changes)
            self._final = self._status.state == records.FAILED
        self._write_change(changed, changes)

    def end(self, state: str, message: str) -> bool:
        """Set the last state: the process exits next, while its other threads still run.

        Return false, and change nothing, where the process has ended before. Raises OSError as `update` does.
        """
        changes = {"state": state, "message": message}
        with self._lock:
            if self._final or self._status.state in records.ENDED:
                return False
            changed = self._change(changes)
            self._final = True
        self._write_change(changed, changes)
        return True

    def _change(self, changes: JsonObject) -> bool:
        """Change fields; return whether the state is another one. With the lock."""
        before = self._status
        if any(name in changes and getattr(before, name) != changes[name] for name in _PROGRESS):
            changes = {**changes, "progress": time.time()}
        self._status = dataclasses.replace(before, **changes)
        return self._status.state != before.state

    def _write_change(self, changed: bool, changes: JsonObject) -> None:
        if changed and changes["state"] in (*PASSING, records.FAILED):
            self._write_or_log(durable=True)
        elif changed:
            self._write(durable=True)

    def write(self) -> None:
        """Write the present fields now. Raises OSError."""
        self._write(durable=True)

    def try_write(self) -> None:
        """Write now; on a full disk leave it to the next heartbeat."""
        self._write_or_log(durable=True)

    def close(self) -> None:
        """Stop the heartbeat. The file keeps the last status."""
        self._ended.set()
        self._thread.join(timeout=5)

    def _beat(self) -> None:
        while not self._ended.wait(HEARTBEAT):
            self._write_or_log(durable=False)

    def _write_or_log(self, *, durable: bool) -> None:
        try:
            self._write(durable=durable)
        except OSError as error:  # a full disk must not stop training
            log.warning("status not written: %s", error)

    def _write(self, *, durable: bool) -> None:
        with self._writing:
            with self._lock:
                self._status = status = dataclasses.replace(self._status, heartbeat=time.time())
            if not _is_superseded(self._path, status):
                status.write(self._path, durable=durable)


def _is_superseded(path: str, mine: records.Status) -> bool:
    """Return whether a newer start of the attempt writes the file: its status stays.

    One that has no number yet is newer than one that has: it takes the next one, or ends.
    """
    if not mine.start:
        return False
    try:
        status = records.Status.read_or_none(path)
    except (OSError, records.RecordError):
        return False
    if status is None:
        return False
    begins = not status.start and status.state not in records.ENDED and status.identity != mine.identity
    return begins or (status.epoch, status.start) > (mine.epoch, mine.start)


def _answers(path: str, run_id: str, attempt: int) -> tuple[int, int]:
    """Return an earlier start's newest acknowledged and rejected sequences, else 0."""
    try:
        before = records.Status.read_or_none(path)
    except (OSError, records.RecordError) as error:
        log.warning("the commands that were answered before are unknown: %s", error)
        return 0, 0
    if before is None or (before.run_id, before.attempt) != (run_id, attempt):
        return 0, 0
    return before.acknowledged, before.rejected
