"""Accelerate: `save_state` and `load_state` of a script of one's own.

Dropout differs after a resume.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import Launcher, OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import NO, UNKNOWN, Checkpoints, Stop, StoredContents

ACCELERATE = TrainerDefaults(
    name="accelerate",
    title="Accelerate",
    resume=("--resume_from_checkpoint", "{checkpoint}"),
    checkpoints=Checkpoints("accelerate", "", reshards=True),
    metrics=None,
    stop=Stop(),
    stored=StoredContents(
        NO,
        UNKNOWN,
        [
            "DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True): only both together "
            "continue with the next batch",
        ],
    ),
    elsewhere=OtherProcesses(  # each process has a random state of its own, and the loader's state is of one process
        NO,
        NO,
        changes=(
            "a prepared scheduler steps once for each process at each update: with another number the learning rate "
            "changes at another pace (split_batches=True, or a scheduler that is not prepared, steps once)",
            "dispatch_batches on a data set with a length repeats batches on several processes",
        ),
    ),
    packages=("accelerate",),
    imports=("accelerate",),
    launchers=(
        Launcher(("accelerate", "launch"), "--num_processes", "{world}"),
        Launcher(("accelerate.commands.launch",), "--num_processes", "{world}"),
    ),
    sees_all=True,
)
