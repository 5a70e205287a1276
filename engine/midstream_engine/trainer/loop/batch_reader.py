"""The batches as the loop of one process reads them: its own rows, and the digest of all rows.

Each process reads, and hashes, only the examples that its devices hold. The digest of a batch is over the digests of
all its examples, in global order; process 0, which writes it down, gets those of the others by the board.
"""

from __future__ import annotations

import itertools
import logging

from midstream_engine import records
from midstream_engine.data.order.batches import Batch
from midstream_engine.processes.rendezvous import Processes
from midstream_engine.trainer.attempt.setup import Setup

log = logging.getLogger(__name__)
DIGEST = 32  # bytes of an example's
_readers = itertools.count()  # every process makes the same ones, in the same order


class Reader:
    """Reads batch after batch. ``batch`` may be called on another thread than ``digest``."""

    def __init__(self, setup: Setup, processes: Processes):
        self._setup, self._processes = setup, processes
        self._key = f"digests-{next(_readers)}"
        if processes.board is not None:
            cut = setup.cut
            log.info("reads %d of a batch's %d examples", len(cut.rows(processes.index)), cut.examples)

    def batch(self, index: int) -> Batch:
        """Batch ``index``; rows that no device of this process holds are zeros."""
        board = self._processes.board
        if board is None:
            return self._setup.batches.batch(index)
        cut = self._setup.cut_at(index)
        batch = self._setup.batches.batch(index, cut.rows(board.process))
        if not self._processes.leads:
            own = [batch.digests[row] for row in cut.owned(board.process)]
            board.post(f"{self._key}-{index}", b"".join(own), to=0)
        return batch

    def digest(self, batch: Batch) -> str:
        """The digest of the whole batch, on process 0; elsewhere an empty text."""
        board = self._processes.board
        if board is None:
            return batch.digest
        if not self._processes.leads:
            return ""
        cut, digests = self._setup.cut_at(batch.index), dict(batch.digests)
        for process in range(1, board.count):
            rows = cut.owned(process)
            said = board.take(f"{self._key}-{batch.index}", process)
            digests.update(zip(rows, (said[at : at + DIGEST] for at in range(0, len(said), DIGEST)), strict=True))
        return records.batch_digest([digests[row] for row in range(batch.size)])
