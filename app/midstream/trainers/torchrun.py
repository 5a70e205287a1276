"""Script under torchrun that saves with torch.distributed.checkpoint (DCP).

torchtitan does so.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import UNKNOWN, Checkpoints, Stop, StoredContents

TORCHRUN = TrainerDefaults(
    name="torchrun",
    title="torchrun with distributed checkpoints",
    resume=None,
    checkpoints=Checkpoints("dcp", "", reshards=True),
    metrics=None,
    # Its agent kills the workers 30 s after SIGTERM unless --shutdown-timeout says otherwise.
    stop=Stop(grace=45.0),
    stored=StoredContents(
        advice=["store the data loader's state in the checkpoint: torchtitan does, a script of one's own has to"]
    ),
    elsewhere=OtherProcesses(UNKNOWN, UNKNOWN),  # a script decides which state is of all processes
    imports=("torch.distributed.checkpoint",),
    named_in_commands=False,  # it starts programs of other trainers too
    commands=("torchrun", "torch.distributed"),
)
