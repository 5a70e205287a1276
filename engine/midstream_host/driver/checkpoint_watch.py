"""Search for the trainer's complete checkpoints while it continues.

The newest one is recorded.
"""

from __future__ import annotations

import os
import posixpath
import threading
import time
from typing import Callable, Dict, List, Optional, Tuple

from midstream_core import records
from midstream_core.attempt.save_fence import FenceUnreadableError
from midstream_core.json_types import JsonValue
from midstream_host.driver import recorded_checkpoints
from midstream_host.driver.checkpoint_places import CheckpointPlaces
from midstream_host.driver.checkpoint_steps import CheckpointSteps, Logged, identity_of
from midstream_host.driver.checkpoints.checkpoint import Checkpoint
from midstream_host.driver.checkpoints.checkpoint_finder import rule_of
from midstream_host.driver.recorded_checkpoints import TrainerCheckpoint
from midstream_host.driver.trainer_setup import TrainerSetup
from midstream_host.driver.work_directory import travelling

SCAN_INTERVAL = 0.5  # seconds
RETRY_INTERVAL = 10.0  # seconds until a checkpoint that could not be recorded is tried again, doubled each time
MAX_RETRY = 300.0
QUIET = 5.0  # seconds without a change after which files that do not show their end count as complete


class CheckpointWatch:
    """Watches the directory of checkpoints of one attempt.

    A checkpoint counts when the trainer of this attempt wrote it: it was not there before its start, or has changed
    since. Its step is at most one save interval above the steps that are logged.
    """

    def __init__(
        self,
        setup: TrainerSetup,
        paths: records.RunPaths,
        attempt: int,
        epoch: int,
        versions: Dict[str, str],
        first: int,
        since: Optional[float] = None,
        start: int = 0,
    ) -> None:
        """Initialize the watch of an attempt's checkpoints.

        Call it before the trainer is started.

        Args:
            setup: The trainer on this node.
            paths: Paths of the run.
            attempt: Number of the attempt.
            epoch: Its epoch.
            versions: Versions of the environment's packages.
            first: Step that the attempt started from; its own checkpoints are later ones.
            since: When a trainer that runs already was started, in seconds; None: it is started next.
            start: The start of the epoch that commits.

        Raises:
            RecordError: What is there already cannot be looked for.
        """
        self._start = start
        self._setup, self._paths, self._attempt, self._epoch, self._versions = setup, paths, attempt, epoch, versions
        self.newest: Optional[records.Manifest] = next(
            (manifest for manifest in reversed(recorded_checkpoints.usable(paths)) if manifest.step == first), None
        )
        self.newest_step = first if self.newest is not None else -1  # of the newest complete one that was found
        checkpoints = setup.run.checkpoints
        self._places = CheckpointPlaces(setup.run, setup.checkpoints, setup.world.size, setup.elsewhere)
        self._others = travelling(paths.root, setup.run.files_digest)  # weights to begin with are no checkpoint of it
        self.problem = ""  # why the newest one is not recorded, in one line
        self._failed = ("", -1)  # path and step of the one that could not be recorded
        self._again, self._wait = 0.0, RETRY_INTERVAL  # when it is tried again, and how long later the next time
        self._unchanged: Dict[str, Tuple[JsonValue, float]] = {}  # path of one without an end: its files, since when
        self._is_first_look = True
        self._first = first
        self._steps = CheckpointSteps(checkpoints.rule, first, recorded_checkpoints.added_to_numbers(paths))
        self._present = self._find_present(since)
        self.older: Optional[Checkpoint] = None  # written by this trainer, of a step below `first`
        self.written: Dict[str, float] = {}  # checkpoints of this trainer, and when each was found, of a growing clock
        self.interval: Optional[int] = None  # largest difference between two checkpoints of this trainer
        self._newest_own: Optional[int] = None
        self._refused = False
        self._scanned = 0.0
        self._thread: Optional[threading.Thread] = None
        self._done: Optional[records.Manifest] = None
        self._error: Optional[Exception] = None

    def count_last_step(self) -> None:
        """Take a checkpoint's number for its last step from now on.

        A rehearsal has shown it.
        """
        if not self._steps.added:
            self._steps.added = 1
            self.newest_step += self.newest_step >= 0

    def refuse(self, why: str) -> None:
        """Record no further checkpoint of this trainer, because of ``why``."""
        self._refused, self.problem = True, why

    def poll(
        self,
        *,
        settle: bool = False,
        ended_well: bool = False,
        logged: Optional[Logged] = None,
        read_rows: Callable[[], object] = lambda: None,
    ) -> Optional[records.Manifest]:
        """Return a checkpoint that was recorded since the last call; None without one.

        Args:
            logged: What the trainer has logged; None: it is not known.
            settle: Nothing is written any more; wait until the newest complete one is recorded.
            ended_well: The trainer has ended by itself, so that it wrote all files of its last checkpoint.
            read_rows: Reads the trainer's new rows. Called before a checkpoint is recorded: the start that continues
                from it leaves the rows before it to this one.

        Raises:
            FenceRejectedError: The run has passed to another epoch.
        """
        if settle and self._thread is not None:
            self._thread.join()
        recorded = self._collect()
        if self._thread is not None or (not settle and time.monotonic() - self._scanned < SCAN_INTERVAL):
            return recorded
        self._scanned = time.monotonic()
        if self._refused:
            return recorded
        try:
            checkpoint = self._find(settle, ended_well, logged)
        except (OSError, ValueError) as error:
            self.problem = "checkpoints cannot be looked for: {}".format(error)[:300]
            return recorded
        if checkpoint is None or (not settle and self._fails_still(checkpoint)):
            return recorded
        read_rows()
        self.newest_step = max(self.newest_step, checkpoint.step)
        self._thread = threading.Thread(target=self._record, args=(checkpoint,), name="recording", daemon=True)
        self._thread.start()
        if settle:
            self._thread.join()
            recorded = self._collect() or recorded
        return recorded

    def _find(self, settle: bool, ended_well: bool, logged: Optional[Logged]) -> Optional[TrainerCheckpoint]:
        """Return the newest complete checkpoint that is not recorded; None without one."""
        above = -1 if self.newest is None else self.newest.step
        own = self._own(logged)
        if self.older is None:
            self.older = next((checkpoint for step, checkpoint in own if self._steps.is_older(checkpoint, step)), None)
        complete = [
            (step, checkpoint)
            for step, checkpoint in own
            if step > above and not self._is_ahead(step, checkpoint.path, logged)
        ]
        partial = [] if ended_well else [pair for pair in complete if self._may_be_partial(pair[1])]
        self._is_first_look = False
        self._unchanged = {
            checkpoint.path: self._unchanged[checkpoint.path]
            for _, checkpoint in complete
            if checkpoint.path in self._unchanged
        }
        complete = [pair for pair in complete if pair not in partial]
        if partial and settle:
            what = "{} was written just before the trainer was ended, and nothing shows that it is complete"
            self.problem = what.format(max(partial, key=lambda pair: pair[0])[1].path)[:300]
        if not complete:
            return None
        step, newest = max(complete, key=lambda pair: pair[0])
        if self._newest_own is not None and step > self._newest_own:
            self.interval = max(self.interval or 0, step - self._newest_own)
        self._newest_own = step
        directory, path = self._places.relative(self._setup.checkpoints, newest.path)
        files = sorted(self._places.relative(directory, file.path)[1] for file in newest.files)
        return TrainerCheckpoint(directory, path, step, tuple(files), self._steps.added)

    def _own(self, logged: Optional[Logged]) -> List[Tuple[int, Checkpoint]]:
        """Return the complete checkpoints of this trainer whose step is known.

        A later checkpoint without a known step is the `problem`: unknown is not absent.
        """
        checkpoints = self._places.find()
        self._steps.look(checkpoints, logged)
        own: List[Tuple[int, Checkpoint]] = []
        unknown: List[Tuple[float, str]] = []
        for checkpoint in checkpoints:
            if checkpoint.complete and self._is_own(checkpoint) and not self._travels(checkpoint):
                self.written.setdefault(checkpoint.path, time.monotonic())
                step = self._steps.step_of(checkpoint, checkpoints, logged)
                if step is not None:
                    own.append((step, checkpoint))
                else:
                    unknown.append((checkpoint.modified, self._steps.problem))
        modified, why = max(unknown, default=(0.0, ""))
        if why and modified > max((checkpoint.modified for _, checkpoint in own), default=0.0):
            self.problem = why[:300]
        return own

    def _find_present(self, started: Optional[float]) -> Dict[str, Tuple[JsonValue, ...]]:
        """Return the checkpoints of earlier processes, as they are now."""
        try:
            checkpoints = self._places.find()
        except (OSError, ValueError) as error:
            raise records.RecordError("checkpoints cannot be looked for: {}".format(error)[:300]) from None
        return {
            checkpoint.path: identity_of(checkpoint)
            for checkpoint in checkpoints
            if started is None or checkpoint.modified < started
        }

    def _is_own(self, checkpoint: Checkpoint) -> bool:
        """Return whether the trainer of this attempt has written a checkpoint."""
        return self._present.get(checkpoint.path) != identity_of(checkpoint)

    def _is_ahead(self, step: int, path: str, logged: Optional[Logged]) -> bool:
        """Return whether a step is more than a save interval above the logged.

        Until two checkpoints show the interval, it is at most what was logged since the start. A source that has no
        row yet shows nothing.
        """
        if logged is None or not logged.rows:
            return False
        done = logged.step - self._first
        interval = max(self.interval if self.interval is not None else done, logged.interval)
        # Where the source lags, an earlier checkpoint shows steps too.
        limit = (max(logged.step, self._newest_own or 0) if logged.lags else logged.step) + interval
        if step <= limit:
            return False
        what = "{} has step {}, and {} steps are logged: a checkpoint is at most one save interval ({}) ahead of them"
        self.problem = what.format(path, step, logged.step, interval)[:300]
        return True

    def _travels(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is one of the files that travel."""
        path = posixpath.join(self._setup.checkpoints, checkpoint.path)
        return posixpath.relpath(path, self._setup.directory) in self._others

    def _may_be_partial(self, checkpoint: Checkpoint) -> bool:
        """Return whether the trainer may still be writing a checkpoint.

        A checkpoint may be partial if it does not show its end and changed a moment ago, also after the trainer was
        ended. The clock of a shared disk may be another: its times count only for what the first look finds.
        """
        if rule_of(self._setup.run.checkpoints.rule).shows_end(checkpoint):
            return False
        try:
            stats = [os.stat(posixpath.join(self._setup.checkpoints, file.path)) for file in checkpoint.files]
        except FileNotFoundError:
            return True
        files = [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
        identity, since = self._unchanged.get(checkpoint.path, (None, 0.0))
        if identity != files:
            age = max(0.0, time.time() - max(stat.st_ctime for stat in stats)) if self._is_first_look else 0.0
            since = time.monotonic() - age
            self._unchanged[checkpoint.path] = files, since
        return time.monotonic() - since < QUIET

    def _fails_still(self, checkpoint: TrainerCheckpoint) -> bool:
        """Return whether a checkpoint failed so recently that it is not tried again."""
        return (checkpoint.path, checkpoint.step) == self._failed and time.monotonic() < self._again

    def _record(self, checkpoint: TrainerCheckpoint) -> None:
        try:
            self._done = recorded_checkpoints.record(
                self._paths,
                self._setup.run,
                checkpoint,
                self._attempt,
                self._epoch,
                self._versions,
                self._setup.world.size,
                self._start,
            )
            recorded_checkpoints.prune(self._paths, self._attempt, own=(self._epoch, self._start))
        except (OSError, records.RecordError, FenceUnreadableError) as error:
            same = (checkpoint.path, checkpoint.step) == self._failed
            self._wait = min(2 * self._wait, MAX_RETRY) if same else RETRY_INTERVAL
            self._failed, self._again = (checkpoint.path, checkpoint.step), time.monotonic() + self._wait
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
            self.newest, self.problem = done, self.problem if self._refused else ""
            self.newest_step = max(self.newest_step, done.step)
        return done
