"""Gradients of several micro-batches: their sum or mean, by DeepSpeed's version.

In some versions DeepSpeed's pipeline added them up instead of averaging them.

Where gradients are accumulated (``gradient_accumulation_steps`` N > 1) in a pipeline (``pipe_parallel_size`` >= 1):

- Before DeepSpeed 0.16.0 the gradient is the mean over the micro-batches, as it is everywhere without a pipeline.
- 0.16.0 to 0.18.2: their sum, N times the mean (github.com/deepspeedai/DeepSpeed/issues/7773).
- 0.18.3 to 0.19.2: the mean in the last stage; each stage before it divides by N again (issue 8152).
- Since 0.19.3: the mean.

With N times the gradient g, Adam's update is ``N m / (sqrt(N^2 v) + epsilon)`` = ``m / (sqrt(v) + epsilon / N)``, and
clipping N g at norm c clips g at c / N. So a run of the second kind continues unchanged on means, if its moments are
divided by N and N^2, and epsilon and the largest norm by N.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from midstream_core.json_types import JsonObject
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState, TorchValue
from midstream_engine.interop.neox.revision import text_in

_SUMMED, _REPEATED, _MEAN = (0, 16, 0), (0, 18, 3), (0, 19, 3)  # first versions of each kind


@dataclass(frozen=True)
class GradientScale:
    """``factor``: by how much the gradients of the source are larger than means."""

    factor: int = 1

    def apply(self, kind: str, numbers: np.ndarray) -> np.ndarray:
        """Return masters or moments as those of mean gradients.

        ``kind``: ``fp32`` for masters; ``exp_avg`` or ``exp_avg_sq`` for moments.
        """
        power = {"exp_avg": 1, "exp_avg_sq": 2}.get(kind, 0)
        if self.factor == 1 or not power:
            return numbers
        return np.divide(numbers, self.factor**power, dtype=numbers.dtype)

    def correct(self, optimizer: dict[str, TorchValue], notes: list[str]) -> None:
        """Change ``optimizer:`` of our configuration for mean gradients, and add a note."""
        if self.factor == 1:
            return
        optimizer["epsilon"] /= self.factor
        if optimizer["max_grad_norm"]:
            optimizer["max_grad_norm"] /= self.factor
        notes.append(
            f"DeepSpeed's pipeline added up the gradients of {self.factor} micro-batches; here they are averaged. For "
            f"the same updates moments, epsilon and max_grad_norm are divided by {self.factor}, second moments by "
            f"{self.factor**2}"
        )


def gradient_scale(state: TorchState, settings: JsonObject, stages: int, directory: str) -> GradientScale:
    """Return the scale of a checkpoint's gradients.

    Args:
        state: Contents of the first rank's ``mp_rank_*_model_states.pt``.
        settings: NeoX's configuration.
        stages: Stages of the pipeline; 0: the run had none.
        directory: For messages.

    Raises:
        ConversionError: The stages' gradients have different scales, or the scale is not known.
    """
    writer = text_in(state, "ds_version")
    version = _version(writer)
    if not stages or version < _SUMMED or version >= _MEAN or (version >= _REPEATED and stages == 1):
        return GradientScale()
    count = _micro_batches(state, settings)
    if count is None:
        raise ConversionError(
            f"{directory}: DeepSpeed {writer} adds up the gradients of a pipeline's micro-batches, whose "
            "number is not known (hint: write gradient-accumulation-steps into configs/)"
        )
    if count > 1 and version >= _REPEATED:
        raise ConversionError(
            f"{directory}: DeepSpeed {writer} divides the gradients of earlier pipeline stages by "
            f"{count} more than once (its issue 8152): moments of different scales cannot be imported"
        )
    return GradientScale(count)


def _version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 0.16.5+91d1c55; zeros if there is none."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(int(number) for number in match.groups()) if match else (0, 0, 0)


def _micro_batches(state: TorchState, settings: TorchState) -> int | None:
    """Return the micro-batches of an update of one rank."""
    config = state.get("ds_config")
    given = config if isinstance(config, Mapping) else {}
    values = {**settings, **{key: value for key, value in given.items() if value}}
    batch, micro = values.get("train_batch_size"), values.get("train_micro_batch_size_per_gpu")
    ranks = state.get("dp_world_size")
    if batch and micro and ranks:
        return max(1, int(batch) // (int(micro) * int(ranks)))
    steps = values.get("gradient_accumulation_steps")
    return int(steps) if steps else None
