"""Levanter: its live runs.

`--migrate PATH` imports its checkpoints into midstream's own engine.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import TrainerDefaults
from midstream_host.driver.run_file import BY_TRAINER, YES, BatchDivision, Checkpoints, Metrics, Stop, StoredContents

LEVANTER = TrainerDefaults(
    name="levanter",
    title="Levanter",
    # Without load_checkpoint it trains from the beginning where the path has no checkpoint (0.2.20), with exit code 0.
    resume=("--trainer.load_checkpoint", "true", "--trainer.load_checkpoint_path", "{checkpoint}"),
    checkpoints=Checkpoints("levanter", "", reshards=True),
    metrics=Metrics("tensorboard", "{out}/**/events.out.tfevents.*"),
    stop=Stop(),
    stored=StoredContents(YES, YES),
    batch=BatchDivision(BY_TRAINER),
    packages=("levanter", "jax", "haliax"),
    imports=("levanter",),
    one_process=True,
)
