"""Search for the trainer's complete checkpoints while it continues.

The newest one is recorded.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from typing import Any, Dict, Optional, Tuple

from midstream_engine import records
from midstream_engine.checkpoint.save_fence import FenceUnreadableError
from midstream_engine.foreign import recorded_checkpoints
from midstream_engine.foreign.checkpoints import glob
from midstream_engine.foreign.checkpoints.checkpoint import Checkpoint
from midstream_engine.foreign.checkpoints.checkpoint_finder import CheckpointFinder
from midstream_engine.foreign.recorded_checkpoints import Found
from midstream_engine.foreign.trainer_setup import Setup
from midstream_engine.foreign.work_directory import travelling

SCAN_INTERVAL = 0.5  # seconds
RETRY_INTERVAL = 10.0  # seconds until a checkpoint that could not be recorded is tried again, doubled each time
LONGEST_RETRY = 300.0
QUIET = 5.0  # seconds without a change after which files that do not show their end count as complete


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
        self._others = travelling(paths.root, setup.run.files_digest)  # weights to begin with are no checkpoint of it
        self.problem = ""  # why the newest one is not recorded, in one line
        self._failed = ("", -1)  # path and step of the one that could not be recorded
        self._again, self._wait = 0.0, RETRY_INTERVAL  # when it is tried again, and how long later the next time
        self._unchanged: Dict[str, Tuple[Any, float]] = {}  # path of one without an end: its files, since when
        self._is_first_look = True
        self._scanned = 0.0
        self._thread: Optional[threading.Thread] = None
        self._done: Optional[records.Manifest] = None
        self._error: Optional[Exception] = None

    def poll(self, *, settle: bool = False, ended_well: bool = False) -> Optional[records.Manifest]:
        """Return a checkpoint that was recorded since the last call; None without one.

        Args:
            settle: Nothing is written any more; wait until the newest complete one is recorded.
            ended_well: The trainer has ended by itself, so that it wrote all files of its last checkpoint.

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
            found = self._find(settle, ended_well)
        except (OSError, ValueError) as error:
            self.problem = "checkpoints cannot be looked for: {}".format(error)[:300]
            return recorded
        if found is None or (not settle and self._fails_still(found)):
            return recorded
        self.newest_step = max(self.newest_step, found.step)
        self._thread = threading.Thread(target=self._record, args=(found,), name="recording", daemon=True)
        self._thread.start()
        if settle:
            self._thread.join()
            recorded = self._collect() or recorded
        return recorded

    def _find(self, settle: bool, ended_well: bool) -> Optional[Found]:
        """Return the newest complete checkpoint that is not recorded; None without one."""
        above = -1 if self.newest is None else self.newest.step
        complete = [
            (each.step, each)
            for each in self._finder.find()
            if each.complete and each.step is not None and each.step > above and not self._travels(each)
        ]
        partial = [] if ended_well else [pair for pair in complete if self._may_be_partial(pair[1])]
        self._is_first_look = False
        self._unchanged = {
            each.path: self._unchanged[each.path] for _, each in complete if each.path in self._unchanged
        }
        complete = [pair for pair in complete if pair not in partial]
        if partial and settle:
            what = "{} was written just before the trainer was ended, and nothing shows that it is complete"
            self.problem = what.format(max(partial, key=lambda pair: pair[0])[1].path)[:300]
        if not complete:
            return None
        step, newest = max(complete, key=lambda pair: pair[0])
        return Found(self._setup.checkpoints, newest.path, step, tuple(sorted(file.path for file in newest.files)))

    def _travels(self, found: Checkpoint) -> bool:
        """Return whether a checkpoint is one of the files that travel."""
        path = posixpath.join(self._setup.checkpoints, found.path)
        return posixpath.relpath(path, self._setup.directory) in self._others

    def _may_be_partial(self, found: Checkpoint) -> bool:
        """Return whether the trainer may still be writing a checkpoint.

        It is one that does not show its end, and changed a moment ago. A trainer that was ended may have been ended in
        the middle of it. The clock of a shared disk may be another: its times count only for what the first look finds.
        """
        if self._setup.run.checkpoints.rule != "glob" or glob.shows_end(found):
            return False
        try:
            stats = [os.stat(posixpath.join(self._setup.checkpoints, file.path)) for file in found.files]
        except FileNotFoundError:
            return True
        files = [(each.st_ino, each.st_size, each.st_mtime_ns) for each in stats]
        known, since = self._unchanged.get(found.path, (None, 0.0))
        if known != files:
            age = max(0.0, time.time() - max(each.st_ctime for each in stats)) if self._is_first_look else 0.0
            since = time.monotonic() - age
            self._unchanged[found.path] = files, since
        return time.monotonic() - since < QUIET

    def _fails_still(self, found: Found) -> bool:
        """Return whether a checkpoint failed so recently that it is not tried again."""
        return (found.path, found.step) == self._failed and time.monotonic() < self._again

    def _record(self, found: Found) -> None:
        try:
            self._done = recorded_checkpoints.record(
                self._paths, self._setup.run, found, self._attempt, self._epoch, self._versions, self._setup.world.size
            )
            recorded_checkpoints.prune(self._paths, self._attempt)
        except (OSError, records.RecordError, FenceUnreadableError) as error:
            same = (found.path, found.step) == self._failed
            self._wait = min(2 * self._wait, LONGEST_RETRY) if same else RETRY_INTERVAL
            self._failed, self._again = (found.path, found.step), time.monotonic() + self._wait
            self._error = error
        except Exception as error:  # noqa: BLE001  raised by the driver's thread
            self._error = error

    def _collect(self) -> Optional[records.Manifest]:
        if self._thread is None or self._thread.is_alive():
            return None
        self._thread = None
        error, self._error = self._error, None
        done, self._done = self._done, None
        if isinstance(error, (OSError, records.RecordError, FenceUnreadableError)):
            self.problem = "a checkpoint was not recorded: {}".format(error)[:300]
        elif error is not None:
            raise error
        if done is not None:
            self.newest, self.problem = done, ""
            self.newest_step = max(self.newest_step, done.step)
        return done
