"""How a run's global batch lies on a number of devices. Pure arithmetic: the data order and the gradient depend on
none of it, because the engine weighs micro-batches by their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream.errors import MidstreamError
from midstream_engine.records import ArrayEntry


@dataclass(frozen=True)
class BatchShape:
    """``train_batch_size = data_parallel * per_device * accumulation``."""

    train_batch_size: int  # examples an update
    data_parallel: int  # devices along the data axis
    per_device: int  # examples a device holds at once
    accumulation: int  # micro-batches an update


def batch_shape(
    train_batch_size: int, devices: int, per_device_parallelism: int = -1, model_axis_size: int = 1
) -> BatchShape:
    """The shape that keeps ``train_batch_size`` on ``devices``.

    ``per_device_parallelism`` is a limit (-1: none): the largest divisor not above it is taken. MidstreamError with
    the device counts that would do where the batch cannot be divided.
    """
    if devices % model_axis_size:
        raise MidstreamError(
            f"{devices} devices cannot be cut into model groups of {model_axis_size} (trainer.model_axis_size)",
            f"choose a target with a multiple of {model_axis_size} devices",
        )
    data_parallel = devices // model_axis_size
    if train_batch_size % data_parallel:
        fitting = [n * model_axis_size for n in range(1, train_batch_size + 1) if train_batch_size % n == 0]
        raise MidstreamError(
            f"a batch of {train_batch_size} cannot be divided over {data_parallel} data-parallel devices",
            f"device counts that would do: {_few(fitting, devices)}",
        )
    share = train_batch_size // data_parallel
    limit = share if per_device_parallelism in (-1, 0) else min(per_device_parallelism, share)
    per_device = max(n for n in range(1, limit + 1) if share % n == 0)
    return BatchShape(train_batch_size, data_parallel, per_device, share // per_device)


def batch_sizes(train_batch_size: Any, step: int) -> list[int]:
    """The global batch sizes from ``step`` on, the present one first: one number, or a schedule of ``{start, value}``.
    MidstreamError where it is neither."""
    entries = train_batch_size if isinstance(train_batch_size, list) else [{"start": 0, "value": train_batch_size}]
    try:
        steps = sorted((int(entry["start"]), int(entry["value"])) for entry in entries)
    except (TypeError, KeyError, AttributeError, ValueError):
        raise MidstreamError(f"trainer.train_batch_size of the run cannot be read: {train_batch_size!r}") from None
    past = [size for start, size in steps if start <= step]
    sizes = [*past[-1:], *(size for start, size in steps if start > step)]
    if not sizes or min(sizes) < 1:
        raise MidstreamError(f"trainer.train_batch_size of the run is {train_batch_size!r}", "it has to be 1 or more")
    return sizes


def check_axes(arrays: Sequence[ArrayEntry], trainer: Mapping[str, Any], devices: int) -> list[str]:
    """One line for every sharded axis of the checkpoint that ``devices`` do not divide; empty where all fit."""
    model_size = int(trainer.get("model_axis_size") or 1)
    data_size = max(1, devices // model_size)
    parts: dict[str, int] = {}
    fsdp = trainer.get("fsdp_axis") or "embed"
    for axis in [fsdp] if isinstance(fsdp, str) else fsdp:
        parts[axis] = data_size
    tensor = trainer.get("tensor_parallel_axes") or []
    for axis in [tensor] if isinstance(tensor, str) else tensor:
        parts[axis] = model_size
    problems = set()
    for array in arrays:
        for axis, size in zip(array.axes, array.shape, strict=True):
            if size % parts.get(axis, 1):
                fitting = [n * model_size for n in range(1, size + 1) if size % n == 0]
                problems.add(
                    f"axis {axis} ({size}) cannot be sharded over {parts[axis]} devices; "
                    f"device counts that would do: {_few(fitting, devices)}"
                )
    return sorted(problems)


def _few(counts: Sequence[int], wanted: int) -> str:
    """The counts nearest to ``wanted``, in order."""
    nearest = sorted(counts, key=lambda count: abs(count - wanted))[:6]
    return ", ".join(str(count) for count in sorted(nearest))
