"""Import of a checkpoint of transformers' Trainer, with its optimizer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence

from midstream_core.precision import Precision
from midstream_engine.config.load import from_mapping
from midstream_engine.config.model import LmConfig
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exact_numbers import common_dtype
from midstream_engine.interop.exported_run import EXP_AVG, EXP_AVG_SQ
from midstream_engine.interop.exported_settings import first_difference, rates_of
from midstream_engine.interop.foreign_run import ForeignRun
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface.importer import described
from midstream_engine.interop.huggingface.run_import import Start, open_model
from midstream_engine.interop.huggingface_trainer.parameter_groups import named_parameters
from midstream_engine.interop.huggingface_trainer.trainer_schedule import TrainerSchedule
from midstream_engine.interop.huggingface_trainer.training_arguments import json_object, processes, read_arguments
from midstream_engine.interop.tensor_files import read_tensors

OPTIMIZER, SCHEDULER, STATE = "optimizer.pt", "scheduler.pt", "trainer_state.json"
FILES = (OPTIMIZER, SCHEDULER, STATE)  # also in ``midstream_engine.convert``
_FLAGS = ("amsgrad", "maximize")
_MOMENTS = {EXP_AVG: "exp_avg", EXP_AVG_SQ: "exp_avg_sq"}
_SAME = 1e-9  # relative: both rates are Python's


def open_trainer(source: str, overrides: Sequence[str], parameters: str | None = None) -> ForeignRun:
    """Open ``checkpoint-N`` with the configuration that continues it.

    Args:
        source: The directory.
        overrides: Flags of the engine; without data the run has none yet.
        parameters: As of ``open_model``.

    Raises:
        ConversionError: A part is missing, damaged, of another update, or contradicts another one.
    """
    missing = [name for name in FILES if not os.path.exists(os.path.join(source, name))]
    if missing:
        raise ConversionError(
            f"{source}: lacks {' and '.join(missing)} of a checkpoint of Trainer (hint: --without-optimizer imports "
            "the model alone, at step 0)"
        )
    arguments = read_arguments(source)
    state = json_object(os.path.join(source, STATE))
    step, total = (_integer(state, name) for name in ("global_step", "max_steps"))
    optimizer, scheduler = (TorchFile(os.path.join(source, name)) for name in (OPTIMIZER, SCHEDULER))
    groups = _groups(optimizer)
    rates = _schedule(arguments, groups[0], total)
    count = _integer(scheduler.value, "last_epoch", SCHEDULER)
    _check_rate(groups, rates, count)
    _, model, _ = described(source)
    names, modules = _names(model, groups, optimizer)
    states = [optimizer.value["state"].get(index, {}) for index in range(len(names))]
    moments = {
        prefix: {name: _tensor(entry, kind, name).read() for name, entry in zip(names, states, strict=True)}
        for prefix, kind in _MOMENTS.items()
    }
    updates = sorted({_tensor(entry, "step", name).read().item() for name, entry in zip(names, states, strict=True)})
    if len(updates) != 1 or updates[0] != int(updates[0]):
        raise ConversionError(f"{OPTIMIZER}: parameters have {' and '.join(map(str, updates))} updates")
    settings = _settings(arguments, groups, rates, modules)
    settings["optimizer"] |= {
        name: common_dtype({array.dtype.name for array in moments[prefix].values()})
        for name, prefix in (("mu_dtype", EXP_AVG), ("nu_dtype", EXP_AVG_SQ))
    }
    notes = _notes(arguments, step, count)
    stored = common_dtype({array.dtype.name for array in read_tensors(source).values()})
    settings["trainer"]["mp"] = _precision(arguments, stored, notes)
    ours = rates_of(from_mapping(settings).config.optimizer, total)
    differing = first_difference(ours, rates.rate, range(count, count + total - step))
    if differing:
        number, here, there = differing
        raise ConversionError(f"the learning rate of update {number} would be {here:.9g} here; it is {there:.9g}")
    start = Start(step, int(updates[0]), count, settings, moments, notes, optimizer.verify, FILES)
    return open_model(source, overrides, parameters, start)


def _groups(optimizer: TorchFile) -> list[ForeignConfig]:
    """Return the two groups of Trainer's AdamW: what decays, and the rest."""
    value = optimizer.value
    groups = value.get("param_groups") if isinstance(value, Mapping) else None
    if not isinstance(groups, list) or not isinstance(value.get("state"), Mapping) or len(groups) != 2:
        raise ConversionError(f"{optimizer.path}: not the two groups of an AdamW that Trainer made")
    for group in groups:
        for name in ("lr", "betas", "eps", "weight_decay", "params"):
            if name not in group:
                raise ConversionError(f"{optimizer.path}: a group lacks {name}: it is not of AdamW")
        for name in _FLAGS:
            if group.get(name):
                raise ConversionError(f"{optimizer.path}: {name}: {group[name]!r} cannot be carried over, only False")
        if not group.get("decoupled_weight_decay", True):
            raise ConversionError(f"{optimizer.path}: weight decay is in the gradient (Adam), here it is decoupled")
    for name in ("lr", "betas", "eps"):
        if groups[0][name] != groups[1][name]:
            raise ConversionError(f"{optimizer.path}: {name} is {groups[0][name]} and {groups[1][name]} in its groups")
    if groups[1]["weight_decay"]:
        raise ConversionError(f"{optimizer.path}: biases and norms decay by {groups[1]['weight_decay']:g}, here by 0")
    return groups


def _names(model: LmConfig, groups: list[ForeignConfig], optimizer: TorchFile) -> tuple[list[str], bool]:
    """Return the parameters in the optimizer's order, and whether embeddings decay.

    They do by Trainer's rule, and not where a run of the engine was exported.
    """
    parameters = named_parameters(model)
    sizes = [len(group["params"]) for group in groups]
    if [index for group in groups for index in group["params"]] != list(range(len(parameters))):
        raise ConversionError(f"{optimizer.path}: has {sum(sizes)} parameters, and config.json {len(parameters)}")
    for embeddings in (True, False):
        groups_by_rule = ([], [])
        for parameter in parameters:
            decays = parameter.decays and (embeddings or not parameter.embedding)
            groups_by_rule[0 if decays else 1].append(parameter.name)
        if [len(names) for names in groups_by_rule] == sizes:
            return [*groups_by_rule[0], *groups_by_rule[1]], embeddings
    expected = sum(parameter.decays for parameter in parameters)
    raise ConversionError(f"{optimizer.path}: {sizes[0]} parameters decay, and {expected} by Trainer's rule")


def _tensor(entry: ForeignConfig, kind: str, name: str) -> Tensor:
    tensor = entry.get(kind)
    if not isinstance(tensor, Tensor):
        raise ConversionError(f"{OPTIMIZER}: lacks {kind} of {name}")
    return tensor


def _schedule(arguments: ForeignConfig, group: ForeignConfig, total: int) -> TrainerSchedule:
    warmup = float(arguments.get("warmup_steps") or 0) or float(arguments.get("warmup_ratio") or 0)
    steps = int(warmup) if warmup >= 1 else math.ceil(total * warmup)
    kind = str(arguments.get("lr_scheduler_type", "linear"))
    schedule = TrainerSchedule(
        kind, float(group.get("initial_lr", arguments["learning_rate"])), steps, total,
        dict(arguments.get("lr_scheduler_kwargs") or {}),
    )  # fmt: skip
    schedule.check()
    return schedule


def _check_rate(groups: list[ForeignConfig], rates: TrainerSchedule, count: int) -> None:
    """Check that the arguments give the rate that the optimizer has."""
    stored, expected = float(groups[0]["lr"]), rates.rate(count)
    if abs(stored - expected) > _SAME * max(abs(stored), abs(expected)):
        raise ConversionError(
            f"{OPTIMIZER}: the learning rate of update {count} is {stored:.9g}, and {expected:.9g} by the arguments "
            f"({rates.kind}, warmup {rates.warmup}, {rates.total} updates)"
        )


def _settings(
    arguments: ForeignConfig, groups: list[ForeignConfig], rates: TrainerSchedule, embeddings: bool
) -> dict[str, ForeignValue]:
    decay = groups[0]["weight_decay"]
    optimizer = {
        "type": "adam", **rates.ours(), "beta1": groups[0]["betas"][0], "beta2": groups[0]["betas"][1],
        "epsilon": groups[0]["eps"], "weight_decay": decay,
        "max_grad_norm": arguments.get("max_grad_norm", 1.0) or None,
    }  # fmt: skip
    if decay and embeddings:
        optimizer |= {"weight_decay_modules": ["embeddings"], "default_weight_decay_mask": True}
    factors = ("per_device_train_batch_size", "gradient_accumulation_steps", "_n_gpu")
    batch = math.prod(max(1, int(arguments.get(name) or 1)) for name in factors) * processes(arguments)
    trainer = {"num_train_steps": rates.total, "train_batch_size": batch, "seed": int(arguments.get("seed") or 0)}
    return {"optimizer": optimizer, "trainer": trainer}


def _precision(arguments: ForeignConfig, stored: str, notes: list[str]) -> str:
    if arguments.get("fp16"):
        notes.append("fp16: the run goes on in bfloat16, which needs no loss scale")
    reduced = arguments.get("bf16") or arguments.get("fp16")
    compute = "bfloat16" if reduced else stored
    return str(Precision(stored, compute, compute))


def _notes(arguments: ForeignConfig, step: int, count: int) -> list[str]:
    notes = [
        "Trainer's order of the data is not imported: the data here goes on at sample step x batch",
        "the state of torch's random generators is not imported: dropout draws other numbers",
    ]
    if count != step:
        notes.append(f"the schedule counts {count} updates, the run {step}: some were skipped for an overflow")
    if arguments.get("group_by_length"):
        notes.append("group_by_length: batches are not grouped by length here")
    return notes


def _integer(values: object, name: str, file: str = STATE) -> int:
    value = values.get(name) if isinstance(values, Mapping) else None
    if type(value) is not int or value < 0:
        raise ConversionError(f"{file}: {name} is {value!r}, and not a number of updates")
    return value
