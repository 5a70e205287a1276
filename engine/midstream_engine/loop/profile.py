"""Profile of some updates: ``trainer.profiler``."""

from __future__ import annotations

import logging
import os

import jax

from midstream_engine.base_directory import resolved_path
from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)


class Profile:
    """Writer of one trace per attempt, for TensorBoard and Perfetto.

    The files are ``plugins/profile/<time>/*`` under ``directory``.

    An error of the profiler is a warning, and training continues without a trace.
    """

    def __init__(self, config: TrainerConfig, attempt: AttemptRecord, first_step: int) -> None:
        """Start ``profiler_start_step`` updates after ``first_step``, the attempt's first."""
        self.directory = profile_directory(config, attempt)
        self._pending = config.profiler
        self._perfetto = config.profiler_perfetto_link
        self._begin = first_step + config.profiler_start_step
        self._end = self._begin + config.profiler_num_steps
        self._running = False

    def changes(self, step: int) -> bool:
        """Return whether `before` starts or ends the trace at ``step``.

        No update may be running then.
        """
        return step >= self._end if self._running else self._pending and step >= self._begin

    def before(self, step: int) -> None:
        """Start or end the trace if it is due; call before each update."""
        if self._running and step >= self._end:
            self.close()
        elif self._pending and not self._running and step >= self._begin:
            self._pending = False
            try:
                jax.profiler.start_trace(self.directory, create_perfetto_trace=self._perfetto)
            except (RuntimeError, OSError, ValueError) as error:
                log.warning("trainer.profiler: no trace (%s)", error)
                return
            self._running = True

    def close(self) -> None:
        """Write the trace if one is running."""
        if not self._running:
            return
        self._running = False
        try:
            jax.profiler.stop_trace()
        except (RuntimeError, OSError, ValueError) as error:
            log.warning("trainer.profiler: trace not written (%s)", error)
            return
        log.info("trace written under %s: tensorboard --logdir %s", self.directory, self.directory)


def profile_directory(config: TrainerConfig, attempt: AttemptRecord) -> str:
    """Return the directory of traces, under ``trainer.log_dir`` or the attempt's own."""
    if config.log_dir:
        return os.path.join(resolved_path(config.log_dir), attempt.paths.run_id, "profiler")
    return os.path.join(attempt.files.dir, "profiler")
