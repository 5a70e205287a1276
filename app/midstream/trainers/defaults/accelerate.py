"""Accelerate: `save_state` and `load_state` of a script of one's own."""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import UNKNOWN, YES, Checkpoints, Stop, Stored

ACCELERATE = TrainerDefaults(
    name="accelerate",
    title="Accelerate",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    checkpoints=Checkpoints("accelerate", "", reshards=True),
    metrics=None,
    stop=Stop(),
    stored=Stored(
        YES,
        UNKNOWN,
        [
            "DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True): only both together "
            "continue with the next batch",
        ],
    ),
    packages=("accelerate",),
)
