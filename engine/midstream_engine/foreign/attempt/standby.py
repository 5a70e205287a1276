"""Standby of another trainer's run.

It rehearses on an earlier checkpoint, then waits for the state.
"""

from __future__ import annotations

import posixpath
import shutil
import signal
import time
from typing import List, Optional

from midstream_engine import records
from midstream_engine.foreign.attempt.attempt_place import EndedEarlyError
from midstream_engine.foreign.attempt.attempt_trainer import AttemptTrainer
from midstream_engine.foreign.attempt.signals import STOPS, wait_for_signal
from midstream_engine.foreign.run_file import RunFile
from midstream_engine.foreign.work_directory import MismatchError
from midstream_engine.trainer.attempt.standby_lease import Lease
from midstream_engine.trainer.runtime.status_file import StatusFile

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
        """Rehearse, then wait; return the command that hands the run over.

        None where it was stopped.

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

        Returns the seconds of a step, None where it was stopped.

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
        self._status.update(state=records.COMPILING, step=restored.step)
        tail = self._trainer.open_tail(setup, self._files.replay, restored.step)
        trainer = self._trainer.start(setup, restored.path)
        deadline = time.monotonic() + REHEARSAL_TIMEOUT
        times: List[float] = []
        how: Optional[str] = None
        while tail.rows < run.rehearsal_steps and time.monotonic() < deadline:
            arrived = wait_for_signal()
            if arrived in STOPS or self._lease.over():
                trainer.end()
                return None
            how = trainer.poll()
            if tail.poll():
                times.append(time.monotonic())
                self._status.update(progress=time.time())
            if how is not None:
                tail.poll()
                break
        trainer.end()
        rows = tail.rows
        tail.close()
        if not rows:
            why = "has not logged a step" if how is None else "ended ({})".format(how)
            raise EndedEarlyError("the rehearsal: {} {} after step {}".format(run.trainer, why, restored.step))
        shutil.rmtree(directory, ignore_errors=True)
        return (times[-1] - times[0]) / max(1, rows - 1) if len(times) > 1 else 0.0

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
