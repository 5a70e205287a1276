"""Any other program, as a training loop of nanoGPT's kind.

Run files state what a default cannot contain.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import OtherProcesses, TrainerDefaults
from midstream_host.driver.run_file import UNKNOWN, Stop, StoredContents

SCRIPT = TrainerDefaults(
    name="script",
    title="script",
    resume=None,
    checkpoints=None,
    metrics=None,
    stop=Stop(),
    elsewhere=OtherProcesses(UNKNOWN, UNKNOWN),
    stored=StoredContents(
        advice=["import midstream_tap adds digests of batches, by which the order of the data is checked"]
    ),
    named_in_commands=False,
)
