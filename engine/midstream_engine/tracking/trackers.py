"""Start the trackers of a configuration."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from functools import partial

from midstream_engine.config.tracker import TensorboardConfig, TrackerConfig, WandbConfig
from midstream_engine.tracking.background_tracker import BackgroundTracker
from midstream_engine.tracking.metrics_file import MetricsFile
from midstream_engine.tracking.metrics_recorder import MetricsRecorder
from midstream_engine.tracking.run_facts import RunFacts
from midstream_engine.tracking.tensorboard import TensorboardTracker
from midstream_engine.tracking.wandb import WandbTracker

log = logging.getLogger(__name__)


def start_recorder(
    path: str, configs: Sequence[TrackerConfig], facts: RunFacts, *, process: int, start: int = 0
) -> MetricsRecorder:
    """Open metrics.jsonl at ``path`` and start a tracker for each of ``configs``.

    Only process 0 starts trackers, so that one run has one writer. A missing package is logged as a warning.
    ``start``: number of the start, which the rows of the file have.
    """
    trackers: list[BackgroundTracker] = []
    for config in configs if process == 0 else ():
        match config:
            case WandbConfig():
                package, extra, make = "wandb", "wandb", partial(WandbTracker, config, facts)
            case TensorboardConfig():
                package, extra, make = "tensorboardX", "tensorboard", partial(TensorboardTracker, config, facts)
            case _:
                continue
        if importlib.util.find_spec(package) is None:
            log.warning(
                "trainer.tracker: %s is not installed (hint: pip install %s); metrics go to metrics.jsonl only",
                package,
                package,
            )
            continue
        trackers.append(BackgroundTracker(extra, make))
    return MetricsRecorder(MetricsFile(path, start), trackers)
