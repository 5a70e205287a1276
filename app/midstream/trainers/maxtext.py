"""MaxText: checkpoints of Orbax.

Any number of hosts loads parameters and optimizer. The state of a grain iterator is loaded by as many as saved it,
unless ``expansion_factor_real_data`` has the factor between both (0.2.5).
"""

from __future__ import annotations

from collections.abc import Callable

from midstream.counts import count
from midstream.errors import Exit, MidstreamError
from midstream.trainers.trainer_defaults import TrainerDefaults
from midstream_host.driver.run_file import (
    BY_TRAINER,
    UNKNOWN,
    YES,
    BatchDivision,
    Checkpoints,
    Metrics,
    RunFile,
    Stop,
    StoredContents,
)

FACTOR = "expansion_factor_real_data"  # hosts of a resume for each host that saved


def _data_problem(run: RunFile, saved: int, loaded: int, position: Callable[[], str]) -> MidstreamError | None:
    """Return why MaxText would refuse the state of a grain iterator, else None."""
    if loaded == saved or position() != "stored":
        return None
    factor = loaded / saved
    given = [word.partition("=")[2] for word in run.resume if word.lstrip("-").startswith(f"{FACTOR}=")]
    if given and _number(given[-1]) == factor:
        return None
    return MidstreamError(
        f"checkpoints of this run have the state of a grain iterator for {count(saved, 'host')}: MaxText refuses "
        f"them on {count(loaded, 'host')}",
        f"{FACTOR}={factor:g} in the resume command, or {count(saved, 'host')}",
        Exit.REFUSED,
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


MAXTEXT = TrainerDefaults(
    name="maxtext",
    title="MaxText",
    resume=(),  # it continues from the newest checkpoint of its output directory
    checkpoints=Checkpoints("maxtext", reshards=True),
    metrics=Metrics("jsonl", "{out}/metrics.jsonl"),
    stop=Stop(),
    stored=StoredContents(YES, UNKNOWN, ["dataset_type: grain stores the position of the data; others begin again"]),
    batch=BatchDivision(BY_TRAINER),
    packages=("maxtext", "jax", "orbax-checkpoint"),
    imports=("maxtext", "MaxText"),
    one_process=True,
    data_problem=_data_problem,
)
