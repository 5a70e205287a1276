"""Search for the trainer's complete checkpoints while it continues.

The newest one is recorded.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from typing import Dict, List, Optional, Tuple

from midstream_engine import records
from midstream_engine.foreign import recorded_checkpoints
from midstream_engine.foreign.checkpoints.checkpoint_finder import CheckpointFinder
from midstream_engine.foreign.recorded_checkpoints import Found
from midstream_engine.foreign.trainer_setup import Setup

SCAN_INTERVAL = 0.5  # seconds


class CheckpointWatch:
    """Watches the directory of checkpoints of one attempt."""

    def __init__(
        self, setup: Setup, paths: records.RunPaths, attempt: int, epoch: int, versions: Dict[str, str], first: int
    ) -> None:
        """Initialize the watch of an attempt's checkpoints.

        ``first``: step that the attempt started from; its own checkpoints are later ones.
        """
        self._setup, self._paths, self._attempt, self._epoch, self._versions = setup, paths, attempt, epoch, versions
        self.newest: Optional[records.Manifest] = next(
            (each for each in reversed(recorded_checkpoints.usable(paths)) if each.step == first), None
        )
        self.newest_step = first if self.newest is not None else -1  # of the newest complete one that was found
        checkpoints = setup.run.checkpoints
        self._finder = CheckpointFinder(checkpoints.rule, setup.checkpoints, checkpoints.pattern, setup.world.size)
        self.problem = ""  # why the newest one is not recorded, in one line
        self._scanned = 0.0
        self._thread: Optional[threading.Thread] = None
        self._done: Optional[records.Manifest] = None
        self._error: Optional[Exception] = None

    def poll(self, *, settle: bool = False) -> Optional[records.Manifest]:
        """Return a checkpoint that was recorded since the last call; None without one.

        ``settle``: nothing is written any more; wait until the newest complete one is recorded.

        Raises:
            FenceRejectedError: The run has passed to another epoch.
        """
        if settle and self._thread is not None:
            self._thread.join()
        recorded = self._collect()
        if self._thread is not None or (not settle and time.monotonic() - self._scanned < SCAN_INTERVAL):
            return recorded
        self._scanned = time.monotonic()
        try:
            found = self._find()
        except (OSError, ValueError) as error:
            self.problem = "checkpoints cannot be looked for: {}".format(error)[:300]
            return recorded
        if found is None or (self.newest is not None and found.step <= self.newest.step):
            return recorded
        self.newest_step = max(self.newest_step, found.step)
        self._thread = threading.Thread(target=self._record, args=(found,), name="recording", daemon=True)
        self._thread.start()
        if settle:
            self._thread.join()
            recorded = self._collect() or recorded
        return recorded

    def _find(self) -> Optional[Found]:
        """Return the newest complete checkpoint of the trainer; None without one."""
        above = self.newest_step - (self.newest is None)
        complete = [
            (each.step, each)
            for each in self._finder.find()
            if each.complete and each.step is not None and each.step > above
        ]
        if not complete:
            return None
        step, newest = max(complete, key=lambda pair: pair[0])
        return Found(self._setup.checkpoints, newest.path, step, tuple(sorted(file.path for file in newest.files)))

    def _record(self, found: Found) -> None:
        try:
            before = self._marks(found)
            done = recorded_checkpoints.record(
                self._paths, self._setup.run, found, self._attempt, self._epoch, self._versions, self._setup.world.size
            )
            if done is not None and self._marks(found) not in (before, []):
                raise records.RecordError("checkpoint of step {} changed while it was recorded".format(found.step))
            if done is None and before and self._marks(found) == before:
                raise records.RecordError("the copy of the checkpoint of step {} is not complete".format(found.step))
            self._done = done
            recorded_checkpoints.prune(self._paths, self._attempt)
        except Exception as error:  # noqa: BLE001  raised or reported by the driver's thread
            self._error = error

    @staticmethod
    def _marks(found: Found) -> List[Tuple[int, int]]:
        """Return size and time of each file; empty where the trainer has removed one."""
        try:
            stats = [os.stat(posixpath.join(found.directory, path)) for path in found.files]
        except FileNotFoundError:
            return []
        return [(each.st_size, each.st_mtime_ns) for each in stats]

    def _collect(self) -> Optional[records.Manifest]:
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        error, self._error = self._error, None
        done, self._done = self._done, None
        if isinstance(error, (OSError, records.RecordError)):
            self.problem = "a checkpoint was not recorded: {}".format(error)[:300]
        elif error is not None:
            raise error
        if done is not None:
            self.newest, self.problem = done, ""
            self.newest_step = max(self.newest_step, done.step)
        return done
