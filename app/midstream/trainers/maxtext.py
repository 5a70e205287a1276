"""MaxText: checkpoints of Orbax.

Any number of hosts loads parameters and optimizer. The state of a grain iterator is loaded by as many as saved it,
unless ``expansion_factor_real_data`` has the factor between both (0.2.5): `migrate.planning.trainer_world` checks it.
"""

from __future__ import annotations

from midstream.trainers.trainer_defaults import TrainerDefaults
from midstream_host.driver.run_file import BY_TRAINER, UNKNOWN, YES, Batch, Checkpoints, Metrics, Stop, Stored

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
