"""Evidence of whether a trainer continued from its checkpoint."""

from __future__ import annotations

import dataclasses
import time

from midstream_core import records
from midstream_host.driver.attempt_place import say
from midstream_host.driver.checkpoint_watch import CheckpointWatch
from midstream_host.driver.metrics_tail import MetricsTail
from midstream_host.driver.opened_files import OpenedFiles
from midstream_host.driver.work_directory import PlacedCheckpoint

# A trainer that has written two checkpoints, and no row for so long after the first, logs what cannot be recorded:
# TensorBoard writes every 120 s, the others sooner.
ROWLESS = 300.0  # seconds
FIRST_ROW, END = "first row", "end"
MAX_ROWS = 64  # that are counted; more add nothing


class StartEvidence:
    """Evidence of one start, written to a file when something is added."""

    def __init__(self, path: str, restored: PlacedCheckpoint, nodes: int) -> None:
        """Begin to watch.

        Call it when the checkpoint is placed, before the trainer is started.

        Args:
            path: File of the evidence.
            restored: The checkpoint as it was placed.
            nodes: Nodes of the attempt; what other nodes open is not seen here.
        """
        self._path, self._nodes = path, nodes
        self._opened = OpenedFiles(restored.directory, restored.files)
        unwatched = self._why_unwatched()
        self._evidence = records.TrainerEvidence(restored.step, files=len(restored.files), unwatched=unwatched)
        self._evidence.write(path)

    @property
    def unrecorded(self) -> str:
        """Reason for which a trainer that trains has no row; empty where it has one."""
        return self._evidence.unrecorded

    @property
    def contradiction(self) -> str:
        """Sign that the trainer left its checkpoint unused; empty without any."""
        return self._evidence.contradiction

    def update(self, tail: MetricsTail, watch: CheckpointWatch, *, own: bool = False, ended: bool = False) -> None:
        """Add what rows and checkpoints show by now.

        Once they show that the trainer did not continue, its checkpoints are not recorded.

        Args:
            tail: Its metrics.
            watch: Its checkpoints.
            own: What was opened since the last call may have been opened by this process itself.
            ended: The trainer has ended.
        """
        evidence, rows, older = self._evidence, tail.since_start, watch.older
        until = evidence.opened_until
        if not until:
            self._opened.look(own=own)
            until = FIRST_ROW if rows.rows else END if ended else ""
            if until:
                self._opened.close()
        evidence_now = dataclasses.replace(
            evidence,
            rows=min(rows.rows, MAX_ROWS),
            first_row=rows.first_row,
            lowest_row=rows.lowest,
            rows_below=min(rows.below, MAX_ROWS),
            counted=rows.counted,
            opened=len(self._opened.opened),
            opened_until=until,
            unwatched=self._why_unwatched(),
            older_checkpoint=older.path if older is not None else "",
            older_checkpoint_step=older.step if older is not None else None,
            unrecorded=_unrecorded(tail, watch),
        )
        if evidence_now == evidence:
            return
        self._evidence = evidence_now
        if evidence_now.contradiction and not evidence.contradiction:
            watch.refuse("{}: its checkpoints are not recorded".format(evidence_now.contradiction))
            say(watch.problem)
        try:
            evidence_now.write(self._path)
        except OSError as error:  # a full disk: the next change is written
            say("evidence of the start cannot be written: {}".format(error)[:300])

    def _why_unwatched(self) -> str:
        if self._opened.problem:
            return self._opened.problem
        return "{} nodes: only what this one opens is seen".format(self._nodes) if self._nodes > 1 else ""


def _unrecorded(tail: MetricsTail, watch: CheckpointWatch) -> str:
    """Return why a trainer that trains has no row; empty where that is not shown."""
    written = watch.written
    if tail.rows or len(written) < 2 or time.monotonic() - min(written.values()) < ROWLESS:
        return ""
    return "{} checkpoints were written since its start, and {}".format(len(written), tail.why_no_row)
