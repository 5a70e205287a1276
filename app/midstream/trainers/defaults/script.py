"""Any other program, as a training loop of nanoGPT's kind.

Its run file states what a default cannot contain.
"""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import Stop, Stored

SCRIPT = TrainerDefaults(
    name="script",
    title="script",
    resume=None,
    checkpoints=None,
    metrics=None,
    stop=Stop(),
    stored=Stored(advice=["import midstream_tap adds digests of batches, by which the order of the data is checked"]),
)
