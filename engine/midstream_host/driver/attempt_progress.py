"""Progress of an attempt's trainer: rows, checkpoints, and their status."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Dict, Optional

from midstream_core import records
from midstream_core.attempt.status_file import StatusFile
from midstream_core.json_types import JsonValue
from midstream_host.driver.attempt_commands import AttemptCommands
from midstream_host.driver.attempt_group import AttemptGroup
from midstream_host.driver.attempt_place import AttemptPlace
from midstream_host.driver.checkpoint_steps import Logged
from midstream_host.driver.checkpoint_watch import CheckpointWatch
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.start_evidence import StartEvidence


class AttemptProgress:
    """Progress of the trainer on this node.

    Node 0 alone reads metrics and records checkpoints.

    Args:
        place: The attempt.
        node: Number of this node.
        group: Its nodes.
        status: Its status.
        commands: Its commands, of which those to save are answered.
        watch: The trainer's checkpoints.
        tail: Its metrics; None on another node.
        evidence: Of a trainer that was started from a checkpoint, whether it continued.
    """

    def __init__(
        self,
        place: AttemptPlace,
        node: int,
        group: AttemptGroup,
        status: StatusFile,
        commands: AttemptCommands,
        watch: CheckpointWatch,
        tail: Optional[MetricsTail],
        evidence: Optional[StartEvidence],
    ) -> None:
        self._log, self._group, self._status, self._commands = place.files.log(node), group, status, commands
        self.watch, self._tail, self._evidence = watch, tail, evidence
        self._log_size = 0

    def look(self, *, settle: bool = False, ended_well: bool = False) -> None:
        """Read new rows, record new checkpoints, and bring the status up to date.

        ``settle``: the trainer has ended, so wait until its newest complete checkpoint is recorded. ``ended_well``: it
        was not ended in the middle of a save.
        """
        if self._tail is None:
            self._look_at_first()
            return
        news: Dict[str, JsonValue] = {}
        rows = self._tail.poll() + (self._tail.poll() if settle else 0)  # a source's last row may be waited for
        state = self._status.value.state
        if rows and state in (records.STARTING, records.RESTORING):
            state = records.TRAINING
        if self._evidence is not None:
            self._evidence.update(self._tail, self.watch)  # before a checkpoint of a wrong run is recorded
        recorded = self.watch.poll(
            settle=settle, ended_well=ended_well, logged=_logged(self._tail), read_rows=self._read_rows
        )
        if self._evidence is not None:
            self._evidence.update(self._tail, self.watch, own=True, ended=settle)
        if recorded is not None:
            self._tail.sync()
            news.update(checkpoint=recorded.name, root_digest=recorded.root_digest, state_bytes=recorded.size)
            acknowledged = self._commands.saved()
            if acknowledged is not None:
                news.update(acknowledged=acknowledged)
        unrecorded = self._evidence.unrecorded if self._evidence is not None else ""
        problem = self.watch.problem or self._tail.problem or unrecorded or self._tail.conflict
        if problem:
            news.update(message=problem)
        if self._evidence is not None and self._evidence.contradiction:
            news.update(contradiction=self._evidence.contradiction)
        step = max(self._tail.step, self._status.value.step)
        self._look_at_log()
        self._status.update(state=state, step=step, **news)

    def nothing_is_given_up(self, newest: int) -> bool:
        """Return whether the newest checkpoint has every step that was done.

        ``newest``: its step. It does too where no later one is recorded. A source that lags, or has no row for some
        steps, does not show the newest step.
        """
        if self._status.value.contradiction:
            return True
        if newest < 0 or newest < self._status.value.step:
            return False
        return self._tail is not None and self._tail.is_prompt

    def close(self) -> None:
        """Write the last rows."""
        if self._tail is not None:
            self._tail.sync()
            self._tail.close()

    def _read_rows(self) -> None:
        """Read the rows before a new checkpoint, and wait until they are on the disk."""
        if self._tail is not None:
            self._tail.poll()
            self._tail.sync()

    def _look_at_first(self) -> None:
        """Take the step of node 0."""
        first, state = self._group.first_status(), self._status.value.state
        self._look_at_log()
        if first is not None:
            if first.state == records.TRAINING and state in (records.STARTING, records.RESTORING):
                state = records.TRAINING
            self._status.update(state=state, step=max(first.step, self._status.value.step))

    def _look_at_log(self) -> None:
        with contextlib.suppress(OSError):
            size = os.stat(self._log).st_size
            if size != self._log_size:  # a trainer that logs every hundredth step is not stalled in between
                self._log_size = size
                self._status.update(progress=time.time())


def _logged(tail: MetricsTail) -> Logged:
    return Logged(tail.step, tail.interval, tail.rows, tail.lags)
