"""TensorBoard event files, written by tensorboardX."""

from __future__ import annotations

import os
from collections.abc import Mapping

from midstream_engine.base_directory import resolved_path
from midstream_engine.config.tracker import TensorboardConfig
from midstream_engine.tracking.run_facts import RunFacts


class TensorboardTracker:
    """Writes ``<logdir>/<run id>/events...``, one file per attempt.

    Steps that this attempt repeats replace those of earlier attempts (``purge_step``).
    """

    def __init__(self, config: TensorboardConfig, facts: RunFacts) -> None:
        from tensorboardX import SummaryWriter

        self.directory = os.path.join(resolved_path(config.logdir), facts.run_id)
        self._writer = SummaryWriter(
            self.directory,
            comment=config.comment,
            purge_step=facts.first_step,
            max_queue=config.max_queue,
            flush_secs=config.flush_secs,
            filename_suffix=config.filename_suffix or f".{facts.attempt:03d}",
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and close the file."""
        self._writer.close()
