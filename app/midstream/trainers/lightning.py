"""Lightning.

SIGTERM saves nothing by default and exits 0; with `save_on_exception=True` it saves, and torchrun then exits 1. A
signal to one rank hangs all: its handler calls a collective. A plain shuffled DataLoader begins its epoch again after a
resume.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import NO, Checkpoints, Metrics, Stop, StoredContents

LIGHTNING = TrainerDefaults(
    name="lightning",
    title="Lightning",
    resume=("--ckpt_path", "{checkpoint}"),
    checkpoints=Checkpoints("lightning", "**/*.ckpt", reshards=True, rewritten=True),
    metrics=Metrics("csv", "{out}/**/metrics.csv"),
    stop=Stop(),
    stored=StoredContents(
        NO,
        NO,
        [
            "torchdata's StatefulDataLoader: a plain shuffled DataLoader begins its epoch again after a resume",
            "ModelCheckpoint(save_on_exception=True), and stop: {saves: true}: it then saves on SIGTERM",
            "dropout and augmentation draw other numbers after a resume: no random state is in its checkpoints",
        ],
    ),
    elsewhere=OtherProcesses(  # the loader's state is of process 0, and counts the batches of one process
        NO,
        NO,
        changes_from_one=(
            "Lightning shuffles a training loader without shuffle on two or more processes: DistributedSampler(..., "
            "shuffle=False) and Trainer(use_distributed_sampler=False) keep its order",
        ),
    ),
    packages=("lightning", "pytorch-lightning"),
    imports=("lightning", "pytorch_lightning"),
    starts_processes=True,
    sees_all=True,
)
