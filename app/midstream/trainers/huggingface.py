"""Trainer of Hugging Face transformers.

SIGTERM ends it without a save: the newest periodic checkpoint remains. `enable_jit_checkpoint` saves a state that is
one step behind the logged curve, so it is not relied on. A resume from a periodic checkpoint on the same number of
processes repeats batches and losses bit by bit.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import NO, YES, Checkpoints, Metrics, Stop, StoredContents

HUGGINGFACE = TrainerDefaults(
    name="huggingface",
    title="Hugging Face Trainer",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    checkpoints=Checkpoints("huggingface", "checkpoint-*", reshards=True),
    metrics=Metrics("tensorboard", "{out}/**/events.out.tfevents.*", first_step=1),
    stop=Stop(),
    stored=StoredContents(YES, YES),
    elsewhere=OtherProcesses(  # rng_state_N.pth is of process N of as many; the others find none, and go on without
        NO,
        YES,
        changes=(
            "a stream of datasets, or one that each process reads in parts, repeats or leaves out a part",
            "dispatch_batches on a data set with a length repeats batches on several processes",
        ),
    ),
    packages=("transformers", "accelerate"),
    imports=("transformers",),
    sees_all=True,
    logs_epochs=True,
)
