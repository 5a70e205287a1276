"""Epoch of a recorded checkpoint of transformers' Trainer.

Standard library only; runs on the host.
"""

from __future__ import annotations

import dataclasses
import posixpath
from typing import Optional

from midstream_core import records
from midstream_core.json_types import object_or_empty
from midstream_host.declarations import reads
from midstream_host.driver.recorded_checkpoints import FILES

STATE = "trainer_state.json"
LARGEST = 64 << 20  # bytes of it
WITHOUT_LENGTH = 1 << 31  # epochs from which on the Trainer has data without a length: it writes sys.maxsize


@dataclasses.dataclass(frozen=True)
class RecordedEpoch:
    """Epoch of a checkpoint: its step, and whether the epoch shows examples.

    ``sized``: the data have a length, by which the Trainer computes the part of an epoch that a step is; else it
    divides by the number of steps, and the epoch says nothing of the examples.
    """

    step: int
    sized: bool


@reads()
def recorded_epoch(root: str, run_id: str, checkpoint: str) -> Optional[RecordedEpoch]:
    """Return the epoch of a recorded checkpoint; None for one of another trainer.

    Raises RecordError, OSError.
    """
    place = records.RunPaths(root, records.check_run_id(run_id)).checkpoint(checkpoint)
    state = object_or_empty(object_or_empty(records.read_json(posixpath.join(place, records.TRAIN))).get("state"))
    if state.get("rule") != "huggingface":
        return None
    file = posixpath.join(place, FILES, str(state.get("path", "")), STATE)
    try:
        value = records.read_json(file, LARGEST)
    except FileNotFoundError:
        return None
    trainer_state = object_or_empty(value)
    epochs, step = trainer_state.get("num_train_epochs"), trainer_state.get("global_step")
    if type(epochs) is not int or type(step) is not int or step < 0:
        return None
    return RecordedEpoch(step, epochs < WITHOUT_LENGTH)
