"""Trainer of Hugging Face transformers.

SIGTERM ends it without a save: the newest periodic checkpoint remains. `enable_jit_checkpoint` saves a state that is
one step behind the logged curve, so it is not relied on. A resume from a periodic checkpoint on the same number of
processes repeats batches and losses bit by bit.
"""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import YES, Checkpoints, Metrics, Stop, Stored

HUGGINGFACE = TrainerDefaults(
    name="huggingface",
    title="Hugging Face Trainer",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    checkpoints=Checkpoints("huggingface", "checkpoint-*", reshards=True),
    metrics=Metrics("tensorboard", "{out}/**/events.out.tfevents.*", first_step=1),
    stop=Stop(),
    stored=Stored(YES, YES),
    packages=("transformers", "accelerate"),
)
