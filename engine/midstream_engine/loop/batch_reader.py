"""Reader of one process: its own rows of each batch, and the digest of all rows.

Each process reads and hashes only the examples that its devices need. The digest of a batch is over the digests of
all its examples in global order; process 0, which records it, receives those of the others through the coordinator.
"""

from __future__ import annotations

import itertools
import logging

from midstream_core import records
from midstream_engine.computation.setup import Setup
from midstream_engine.data.batches import Batch
from midstream_engine.processes.rendezvous import Processes

log = logging.getLogger(__name__)
DIGEST = 32  # bytes of an example's digest
_readers = itertools.count()  # numbers in keys: every process makes the same readers in the same order


class BatchReader:
    """Reader of one batch after another.

    ``batch`` may be called on another thread than ``digest``.
    """

    def __init__(self, setup: Setup, processes: Processes) -> None:
        self._setup, self._processes = setup, processes
        self._key = f"digests-{next(_readers)}"
        if processes.client is not None:
            cut = setup.cut
            log.info("reads %d of a batch's %d examples", len(cut.rows(processes.index)), cut.examples)

    def batch(self, index: int) -> Batch:
        """Read batch ``index``; rows that no device of this process needs are zeros."""
        client = self._processes.client
        if client is None:
            return self._setup.batches.batch(index)
        cut = self._setup.cut_at(index)
        batch = self._setup.batches.batch(index, cut.rows(client.process))
        if not self._processes.leads:
            own = [batch.digests[row] for row in cut.owned(client.process)]
            client.send(f"{self._key}-{index}", b"".join(own), to=0)
        return batch

    def digest(self, batch: Batch) -> str:
        """Return the digest of the complete batch on process 0, elsewhere an empty string."""
        client = self._processes.client
        if client is None:
            return batch.digest
        if not self._processes.leads:
            return ""
        cut, digests = self._setup.cut_at(batch.index), dict(batch.digests)
        for process in range(1, client.count):
            rows = cut.owned(process)
            data = client.receive(f"{self._key}-{batch.index}", process)
            digests.update(zip(rows, (data[at : at + DIGEST] for at in range(0, len(data), DIGEST)), strict=True))
        return records.batch_digest([digests[row] for row in range(batch.size)])
