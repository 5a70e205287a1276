"""MaxText: checkpoints of Orbax."""

from __future__ import annotations

from midstream.trainers.defaults.trainer_defaults import TrainerDefaults
from midstream_engine.foreign.run_file import BY_TRAINER, UNKNOWN, YES, Batch, Checkpoints, Metrics, Stop, Stored

MAXTEXT = TrainerDefaults(
    name="maxtext",
    title="MaxText",
    resume=(),  # it continues from the newest checkpoint of its output directory
    checkpoints=Checkpoints("maxtext", reshards=True),
    metrics=Metrics("jsonl", "{out}/metrics.jsonl"),
    stop=Stop(),
    stored=Stored(YES, UNKNOWN, ["dataset_type: grain stores the position of the data; others begin again"]),
    batch=Batch(BY_TRAINER),
    packages=("maxtext", "jax", "orbax-checkpoint"),
)
