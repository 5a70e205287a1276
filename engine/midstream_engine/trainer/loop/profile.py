"""A trace of some updates: ``trainer.profiler``."""

from __future__ import annotations

import logging
import os

import jax

from midstream_engine.base_directory import resolved_path
from midstream_engine.config.trainer import TrainerConfig
from midstream_engine.trainer.attempt.attempt_record import Attempt

log = logging.getLogger(__name__)


class Profile:
    """Writes one trace an attempt, as TensorBoard and Perfetto read it: ``plugins/profile/<time>/*`` under
    ``directory``. A profiler that fails is reported and left alone."""

    def __init__(self, config: TrainerConfig, attempt: Attempt, first_step: int):
        """``first_step``: the attempt's first; the trace begins ``profiler_start_step`` updates later."""
        self.directory = profile_directory(config, attempt)
        self._wanted = config.profiler
        self._perfetto = config.profiler_perfetto_link
        self._begin = first_step + config.profiler_start_step
        self._end = self._begin + config.profiler_num_steps
        self._running = False

    def before(self, step: int) -> None:
        """Call before each update."""
        if self._running and step >= self._end:
            self.close()
        elif self._wanted and not self._running and step >= self._begin:
            self._wanted = False
            try:
                jax.profiler.start_trace(self.directory, create_perfetto_trace=self._perfetto)
            except (RuntimeError, OSError, ValueError) as error:
                log.warning("trainer.profiler: no trace (%s)", error)
                return
            self._running = True

    def close(self) -> None:
        """Write the trace, where one is being taken."""
        if not self._running:
            return
        self._running = False
        try:
            jax.profiler.stop_trace()
        except (RuntimeError, OSError, ValueError) as error:
            log.warning("trainer.profiler: trace not written (%s)", error)
            return
        log.info("trace written under %s: tensorboard --logdir %s", self.directory, self.directory)


def profile_directory(config: TrainerConfig, attempt: Attempt) -> str:
    """Under ``trainer.log_dir`` where that is given, else in the attempt's directory."""
    if config.log_dir:
        return os.path.join(resolved_path(config.log_dir), attempt.paths.run_id, "profiler")
    return os.path.join(attempt.files.dir, "profiler")
