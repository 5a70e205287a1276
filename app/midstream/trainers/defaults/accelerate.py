"""Accelerate: `save_state` and `load_state` of a script of one's own.

Dropout differs after a resume.
"""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import NO, UNKNOWN, Checkpoints, Stop, Stored

ACCELERATE = TrainerDefaults(
    name="accelerate",
    title="Accelerate",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    checkpoints=Checkpoints("accelerate", "", reshards=True),
    metrics=None,
    stop=Stop(),
    stored=Stored(
        NO,
        UNKNOWN,
        [
            "DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True): only both together "
            "continue with the next batch",
        ],
    ),
    packages=("accelerate",),
)
