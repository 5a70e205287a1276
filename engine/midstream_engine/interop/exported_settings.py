"""Refusals of exports: updates, rates or batches that another format cannot have."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping

from midstream_core.learning_rate import rate_at, rate_parts, rate_settings
from midstream_engine.config.optimizer import AdamConfig, OptimizerConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import MASTER, MOMENTS, ExportedRun

# Settings of Adam with decoupled decay that other programs' AdamW has not, with their value there.
PLAIN_ADAMW: Mapping[str, object] = {
    "optimizer.nesterov": False, "optimizer.update_rms_clipping": None, "optimizer.clip_update_norm": None,
    "optimizer.adamc_weight_decay": False, "optimizer.skip_bad_steps": False, "z_loss_weight": 0.0,
}  # fmt: skip
Rates = Callable[[int], float]  # learning rate by the schedule's count
_CLOSE = 1e-6  # relative: rates are float32 in the engine


def adam_of(run: ExportedRun, program: str, theirs: Mapping[str, object] = PLAIN_ADAMW) -> AdamConfig:
    """Return the run's Adam, if ``program`` computes the same updates.

    Args:
        run: The run.
        program: Name of the other program, for messages.
        theirs: Settings that ``program`` has with one value alone, by their dotted names.

    Raises:
        ConversionError: The optimizer is another one, a setting differs, or a moment is missing.
    """
    adam = run.config.optimizer
    if not isinstance(adam, AdamConfig):
        kind = type(adam).__name__.removesuffix("Config").lower()
        raise ConversionError(f"optimizer.type: {kind} here, and {program} gets an Adam (hint: --to huggingface)")
    for name, value in theirs.items():
        ours: object = functools.reduce(getattr, name.split("."), run.config)
        if (ours or None) != (value or None):
            raise ConversionError(f"{name}: {ours!r} here, and {program} has {value!r}")
    for kind in MOMENTS:
        lacking = [name for name in run.parameters if kind + name not in run.arrays]
        if lacking:
            raise ConversionError(f"{run.checkpoint}: lacks {kind}{lacking[0]}")
    return adam


def rates_of(optimizer: OptimizerConfig, total: int) -> Rates:
    """Return the learning rates of a run of ``total`` updates."""
    return functools.partial(rate_at, rate_parts(rate_settings(dataclasses.asdict(optimizer)), total))


def first_difference(ours: Rates, theirs: Rates, counts: Iterable[int]) -> tuple[int, float, float] | None:
    """Return the first count whose rates differ, and both; None: there is none.

    They differ by more than rounding.
    """
    for count in counts:
        here, there = ours(count), theirs(count)
        if abs(here - there) > _CLOSE * max(abs(here), abs(there)):
            return count, here, there
    return None


def check_rates(run: ExportedRun, program: str, theirs: Rates) -> None:
    """Compare the learning rate of every update that is left with the other program's.

    ``theirs``: learning rate of ``program`` by the run's schedule count.

    Raises:
        ConversionError: One differs by more than rounding.
    """
    total = run.config.trainer.num_train_steps
    counts = range(run.schedule_count, run.schedule_count + total - run.step)
    differing = first_difference(rates_of(run.config.optimizer, total), theirs, counts)
    if differing:
        count, here, there = differing
        raise ConversionError(
            f"the learning rate of update {count} is {here:.9g} here, and {there:.9g} in {program} (hint: "
            "--to huggingface has the weights alone)"
        )


def batch_of(run: ExportedRun, program: str) -> int:
    """Return the examples of every update that is left.

    Raises:
        ConversionError: The batch changes later.
    """
    sizes = run.config.trainer.batch_schedule().sizes(run.step, max(run.config.trainer.num_train_steps, run.step + 1))
    if len(sizes) > 1:
        raise ConversionError(
            f"trainer.train_batch_size: {sizes[0]} and later {sizes[1]} here, and {program} has one size for all"
        )
    return sizes[0]


def widened(run: ExportedRun) -> list[str]:
    """Return a line if parameters or moments are stored in less than float32.

    The export has the same numbers in float32.
    """
    stored = {kind: {run.arrays[kind + name].dtype for name in run.parameters} for kind in (MASTER, *MOMENTS)}
    narrow = [
        f"{what} ({', '.join(sorted(dtypes))})"
        for what, dtypes in zip(("parameters", "first moments", "second moments"), stored.values(), strict=True)
        if dtypes != {"float32"}
    ]
    return [f"{', '.join(narrow)}: the same numbers in float32, and not rounded after later updates"] if narrow else []
