"""DeepSpeed: `save_checkpoint` with its file `latest`.

A checkpoint of ZeRO has a part for each process: another number of them can load it only after `ds_to_universal`.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import Launcher, OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import NO, UNKNOWN, Checkpoints, Stop, StoredContents

DEEPSPEED = TrainerDefaults(
    name="deepspeed",
    title="DeepSpeed",
    resume=None,
    checkpoints=Checkpoints("deepspeed", "", reshards=False),
    metrics=None,
    stop=Stop(),
    stored=StoredContents(advice=["put the data loader's state into client_state of save_checkpoint"]),
    elsewhere=OtherProcesses(NO, UNKNOWN),  # a universal checkpoint has parameters and optimizer
    packages=("deepspeed",),
    imports=("deepspeed",),
    launchers=(Launcher(("deepspeed",), "--num_gpus", "{devices}"),),
    sees_all=True,
)
