"""DeepSpeed: `save_checkpoint` with its file `latest`.

A checkpoint of ZeRO has a part for each process. The driver divides it over another number before the start.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import Launcher, OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import NO, UNKNOWN, Checkpoints, Stop, StoredContents

DEEPSPEED = TrainerDefaults(
    name="deepspeed",
    title="DeepSpeed",
    resume=None,
    checkpoints=Checkpoints("deepspeed", "", reshards=True),
    metrics=None,
    stop=Stop(),
    stored=StoredContents(advice=["put the data loader's state into client_state of save_checkpoint"]),
    elsewhere=OtherProcesses(
        NO, UNKNOWN, ("the checkpoint is divided over them before the start: every number stays, sums round otherwise",)
    ),
    packages=("deepspeed",),
    imports=("deepspeed",),
    launchers=(Launcher(("deepspeed",), "--num_gpus", "{devices}"),),
    sees_all=True,
)
