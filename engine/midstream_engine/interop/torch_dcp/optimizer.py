"""Counts, rates and decay of the AdamW in a distributed checkpoint of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchValue
from midstream_engine.interop.torch_dcp.names import EXP_AVG, EXP_AVG_SQ, FUSED, GROUPS, PARTS, STATE
from midstream_engine.interop.torch_dcp.reader import DcpCheckpoint

_SINGLE = ("lr", "initial_lr", "betas", "eps")  # one value for all parameters
_UNSET = ("amsgrad", "maximize")
LAST_EPOCH, TRAIN_STEP = "lr_scheduler.last_epoch", "train_state.step"
_COUNTS = (TRAIN_STEP, LAST_EPOCH, "step")


@dataclass(frozen=True)
class StoredAdam:
    """Settings of the stored AdamW.

    ``rate``: of the next update; ``decays``: by the names in the optimizer.
    """

    count: int
    rate: float | None
    settings: Mapping[str, float]  # learning_rate, beta1, beta2, epsilon, weight_decay
    decays: Mapping[str, bool]


def parameters_of(checkpoint: DcpCheckpoint) -> list[str]:
    """Return the names of the optimizer's parameters.

    Raises:
        ConversionError: There is no optimizer with Adam's moments.
    """
    end = f".{EXP_AVG}"
    names = [name.removeprefix(STATE).removesuffix(end) for name in checkpoint.tensors
             if name.startswith(STATE) and name.endswith(end)]  # fmt: skip
    if not names:
        raise ConversionError(
            f"{checkpoint.directory}: has no {STATE}*{end}: the state of AdamW is missing (hint: torchtitan's last "
            "save has the model alone, unless --checkpoint.no-last-save-model-only)"
        )
    return names


def optimizer_name(name: str, parameters: list[str]) -> str:
    """Return the optimizer's name of a parameter: of a joined matrix if it has one."""
    if name in parameters:
        return name
    for end in PARTS:
        if name.endswith(end) and name.removesuffix(end) + FUSED in parameters:
            return name.removesuffix(end) + FUSED
    return name


def read_adam(checkpoint: DcpCheckpoint, parameters: list[str], notes: list[str]) -> StoredAdam:
    """Return the counts and settings.

    Raises:
        ConversionError: Counts or settings differ that are equal in every checkpoint of AdamW's.
    """
    count = _count(checkpoint, parameters)
    values = {name: {key: _plain(checkpoint.value(f"{GROUPS}{name}.{key}"))
                     for key in (*_SINGLE, *_UNSET, "weight_decay", "decoupled_weight_decay")}
              for name in parameters}  # fmt: skip
    for name, group in values.items():
        for key in _UNSET:
            if group[key]:
                raise ConversionError(f"{GROUPS}{name}.{key}: {group[key]!r} has no counterpart")
    for key in _SINGLE:
        different = {repr(group[key]) for group in values.values()}
        if len(different) > 1:
            raise ConversionError(f"{GROUPS}*.{key}: {', '.join(sorted(different))}, and there is one for all here")
    decays = {name: float(group["weight_decay"] or 0.0) for name, group in values.items()}
    sizes = sorted(set(decays.values()) - {0.0})
    if len(sizes) > 1:
        raise ConversionError(f"{GROUPS}*.weight_decay: {sizes}, and there is one for all here")
    first = next(iter(values.values()))
    if sizes and first["decoupled_weight_decay"] is False:
        raise ConversionError(f"{GROUPS}*.decoupled_weight_decay: Adam with L2 has no counterpart; AdamW is read")
    settings = {"weight_decay": sizes[0] if sizes else 0.0}
    if first["betas"] is None:
        notes.append(f"{GROUPS}*: not in the checkpoint: the optimizer's settings are those of the configuration")
        return StoredAdam(count, None, {}, {name: size > 0 for name, size in decays.items()})
    beta1, beta2 = first["betas"]
    settings |= {"beta1": float(beta1), "beta2": float(beta2), "epsilon": float(first["eps"])}
    if first["initial_lr"] is not None:
        settings["learning_rate"] = float(first["initial_lr"])
    rate = None if first["lr"] is None else float(first["lr"])
    return StoredAdam(count, rate, settings, {name: size > 0 for name, size in decays.items()})


def used_names(checkpoint: DcpCheckpoint, parameters: list[str]) -> set[str]:
    """Return the names that are read here: counts, and settings of parameters."""
    state = {f"{STATE}{name}.{key}" for name in parameters for key in ("step", EXP_AVG, EXP_AVG_SQ)}
    return state | {name for name in checkpoint.names if name.startswith((GROUPS, "lr_scheduler.", "train_state."))
                    or name in _COUNTS}  # fmt: skip


def _count(checkpoint: DcpCheckpoint, parameters: list[str]) -> int:
    counts = {name: checkpoint.value(name) for name in _COUNTS}
    counts |= {f"{STATE}{name}.step": checkpoint.value(f"{STATE}{name}.step") for name in parameters}
    stated = {name: _plain(count) for name, count in counts.items() if count is not None}
    numbers = {int(count) for count in stated.values() if isinstance(count, int | float) and count == int(count)}
    if len(numbers) != 1 or len(stated) < 1:
        shown = ", ".join(f"{name} {count!r}" for name, count in list(stated.items())[:4])
        raise ConversionError(f"{checkpoint.directory}: its counts of updates are missing or differ: {shown}")
    return numbers.pop()


def _plain(value: TorchValue) -> TorchValue:
    return value.read().item() if isinstance(value, Tensor) and value.size == 1 else value
