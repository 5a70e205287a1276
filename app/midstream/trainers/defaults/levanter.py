"""Levanter: its live runs.

`--migrate PATH` imports its checkpoints into midstream's own engine.
"""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import BY_TRAINER, YES, Batch, Checkpoints, Metrics, Stop, Stored

LEVANTER = TrainerDefaults(
    name="levanter",
    title="Levanter",
    resume=("--trainer.load_checkpoint_path", "{checkpoint}"),
    checkpoints=Checkpoints("levanter", "", reshards=True),
    metrics=Metrics("tensorboard", "{out}/**/events.out.tfevents.*"),
    stop=Stop(),
    stored=Stored(YES, YES),
    batch=Batch(BY_TRAINER),
    packages=("levanter", "jax", "haliax"),
)
