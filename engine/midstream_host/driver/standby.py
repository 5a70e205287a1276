"""Standby of another trainer's run: rehearses, then waits for the state.

The rehearsal trains from an earlier checkpoint.
"""

from __future__ import annotations

import posixpath
import shutil
import signal
import time
from typing import List, Optional, Tuple

from midstream_core import records
from midstream_core.attempt import replay_file
from midstream_core.attempt.standby_lease import Lease
from midstream_core.attempt.status_file import StatusFile
from midstream_host.driver.attempt_origin import why_complete
from midstream_host.driver.attempt_place import EndedEarlyError
from midstream_host.driver.attempt_trainer import AttemptTrainer
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.opened_files import OpenedFiles
from midstream_host.driver.run_file import RunFile
from midstream_host.driver.signals import STOPS, wait_for_signal
from midstream_host.driver.work_directory import MismatchError

REHEARSAL_TIMEOUT = 1800.0  # seconds for the first rows of a rehearsal
LEASE = 600.0  # seconds without a renewal after which a standby exits


class Standby:
    """An attempt that waits for its state; its trainer was started once before."""

    def __init__(self, trainer: AttemptTrainer, status: StatusFile) -> None:
        self._trainer, self._status = trainer, status
        self._files = trainer.place.files
        self._sequence = 0
        self._lease = Lease(self._files.lease, LEASE)

    def run(self, run: RunFile, command: records.Command) -> Optional[records.Command]:
        """Rehearse, wait, return the command that hands the run over; None if stopped.

        Raises:
            EndedEarlyError: The trainer does not train here.
            MismatchError: The checkpoint has other bytes than were recorded.
        """
        self._sequence = command.sequence
        pace = self._rehearse(run, command)
        if pace is None:
            return None
        self._status.update(state=records.WAITING, rehearsed_seconds=pace)
        return self._wait_for_state()

    def _rehearse(self, run: RunFile, command: records.Command) -> Optional[float]:
        """Start the trainer once on an earlier checkpoint.

        Returns the seconds of a step, None if the standby was stopped.

        Its rows go to ``replay.jsonl``: the migration compares them with those of the source, which has trained past
        that checkpoint. Nothing is compared here.
        """
        directory = posixpath.join(self._files.dir, "rehearsal")
        setup = self._trainer.setup(run, directory)
        self._status.update(state=records.RESTORING, acknowledged=command.sequence)
        restored = self._trainer.place_inputs(setup, command.checkpoint)
        assert restored is not None
        if command.root_digest not in (None, restored.root_digest):
            raise MismatchError("{} was not copied as it was recorded".format(command.checkpoint))
        complete = why_complete(run, restored)
        if complete:
            raise EndedEarlyError(
                "the run is complete, {}: there is nothing to rehearse (hint: --mode cold copies it, and "
                "does not start the trainer)".format(complete)
            )
        self._status.update(state=records.COMPILING, step=restored.step)
        tail = self._trainer.open_tail(setup, replay_file.create(self._files), restored.step)
        opened = OpenedFiles(restored.directory, restored.files)
        trainer = self._trainer.start(setup, restored.path)
        deadline = time.monotonic() + REHEARSAL_TIMEOUT
        times: List[Tuple[float, int]] = []  # when rows were read, and how many there were by then
        how: Optional[str] = None
        while tail.rows < run.rehearsal_steps and time.monotonic() < deadline:
            arrived = wait_for_signal()
            if arrived in STOPS or self._lease.over():
                trainer.end()
                return None
            how = trainer.poll()
            if tail.poll():
                times.append((time.monotonic(), tail.rows))
                self._status.update(progress=time.time())
            why = _not_continued(tail, opened, restored.step)
            if why:
                trainer.end()
                raise EndedEarlyError("the rehearsal: {}".format(why))
            if how is not None:
                tail.poll()
                break
        trainer.end()
        rows = tail.rows
        tail.close()
        opened.close()
        if not rows:
            why = "has not logged a step" if how is None else "ended ({})".format(how)
            raise EndedEarlyError("the rehearsal: {} {} after step {}".format(run.trainer, why, restored.step))
        shutil.rmtree(directory, ignore_errors=True)
        return _pace(times)

    def _wait_for_state(self) -> Optional[records.Command]:
        while True:
            arrived: Optional[signal.Signals] = wait_for_signal()
            if arrived in STOPS or self._lease.over():
                return None
            try:
                command = records.Command.read_or_none(self._files.command_file)
            except (OSError, records.RecordError):
                continue
            if command is None or command.sequence <= self._sequence:
                continue
            self._sequence = command.sequence
            if command.action == records.STOP:
                self._status.update(acknowledged=command.sequence)
                return None
            if command.action == records.RESTORE:
                epoch = self._trainer.place.epoch
                self._status.update(epoch=epoch, acknowledged=command.sequence, state=records.RESTORING)
                return command
            self._status.update(rejected=command.sequence, message="a standby does not {}".format(command.action))


def _pace(times: List[Tuple[float, int]]) -> float:
    """Return the seconds of a row; 0 where all were read at once, which shows no pace."""
    if len(times) < 2:
        return 0.0
    (began, before), (ended, after) = times[0], times[-1]
    return (ended - began) / max(1, after - before)


def _not_continued(tail: MetricsTail, opened: OpenedFiles, step: int) -> str:
    """Return what shows that the trainer left its checkpoint unused; empty: nothing."""
    rows = tail.since_start
    if rows.below:
        return "the trainer logged step {} after its start from step {}".format(rows.lowest, step)
    if rows.rows:
        opened.look()
        if not opened.opened and not opened.problem:
            return "no process opened a file of the checkpoint of step {} before the trainer's first row".format(step)
    return ""
