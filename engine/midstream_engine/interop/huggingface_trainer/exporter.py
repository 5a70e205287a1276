"""Export of a run as a checkpoint that the Trainer of transformers resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial

import numpy as np

from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.model import Gpt2Config
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG, EXP_AVG_SQ, ExportedRun
from midstream_engine.interop.exported_settings import adam_of, batch_of, check_rates, widened
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue
from midstream_engine.interop.huggingface import exporter as model_directory
from midstream_engine.interop.huggingface.names import unpadded
from midstream_engine.interop.huggingface_trainer.parameter_groups import NamedParameter, named_parameters
from midstream_engine.interop.huggingface_trainer.trainer_schedule import TrainerSchedule, schedule_of
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_saving import save

PROGRAM = "Trainer"
_GPT2 = ["set model.loss_type = 'ForCausalLM' before Trainer(...): it counts a target too many in each row of a GPT-2"]
_INTERVALS = {"logging_steps": 1, "save_steps": 500, "eval_steps": 500}
ARGUMENTS = "training_arguments.json"
DECAYING = "decay_parameters.json"  # names, where Trainer's rule has others


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write ``checkpoint-N`` and the arguments that continue it.

    Raises:
        ConversionError: Trainer cannot have the run's optimizer, rates or batches.
    """
    adam, batch = adam_of(run, PROGRAM), batch_of(run, PROGRAM)
    schedule = schedule_of(adam, run.config.trainer.num_train_steps)
    check_rates(run, PROGRAM, schedule.rate)
    groups, decay_note = _groups(run, adam)
    name = f"checkpoint-{run.step}"
    checkpoint = os.path.join(directory, name)
    os.makedirs(checkpoint)
    model_directory.export(run, checkpoint, options)
    save(os.path.join(checkpoint, "optimizer.pt"), _optimizer(run, adam, schedule, groups))
    save(os.path.join(checkpoint, "scheduler.pt"), _scheduler(run, schedule))
    arguments = _arguments(run, adam, schedule, batch)
    _write(os.path.join(checkpoint, "trainer_state.json"), _state(run, batch, arguments))
    _write(os.path.join(directory, ARGUMENTS), arguments)
    files = [name, ARGUMENTS]
    if decay_note:
        _write(os.path.join(directory, DECAYING), [parameter.name for parameter in groups[0]])
        files.append(DECAYING)
    listed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
    notes = [
        *([decay_note] if decay_note else []),
        *widened(run),
        *(_GPT2 if isinstance(run.config.model, Gpt2Config) else []),
        "data, its order and dropout's random numbers are not exported: Trainer skips the first "
        f"{run.step} batches of the data that it is given",
        f"continue with TrainingArguments({listed}); per_device_train_batch_size is that of all devices and "
        "gradient_accumulation_steps together",
    ]
    return Exported(files, notes)


def _groups(run: ExportedRun, adam: AdamConfig) -> tuple[list[list[NamedParameter]], str]:
    """Return the parameters that decay and the others.

    Also returns a line if Trainer's rule is another.

    Raises:
        ConversionError: Trainer would load groups of other parameters, because there are as many.
    """
    parameters = named_parameters(run.config.model)
    by_rule = decays = {parameter.name: parameter.decays for parameter in parameters}
    if adam.weight_decay:
        decays = {parameter.name: run.parameters[parameter.rule.ours].decays for parameter in parameters}
    groups = [[parameter for parameter in parameters if decays[parameter.name] == own] for own in (True, False)]
    differing = [name for name in decays if decays[name] != by_rule[name]]
    if not differing:
        return groups, ""
    ours, theirs = (adam.weight_decay if rule[differing[0]] else 0.0 for rule in (decays, by_rule))
    listed = f"{', '.join(differing[:4])}{' ...' if differing[4:] else ''}"
    text = f"weight decay of {listed} is {ours:g} here, and {theirs:g} by Trainer's rule"
    if len(groups[0]) == sum(by_rule.values()):
        raise ConversionError(f"{text}, with as many parameters in each group: it would load the wrong ones")
    return groups, (
        f"{text}: override Trainer.get_decay_parameter_names to return the names in {DECAYING}; without it torch "
        "refuses the optimizer's groups"
    )


def _optimizer(
    run: ExportedRun, adam: AdamConfig, schedule: TrainerSchedule, groups: Sequence[Sequence[NamedParameter]]
) -> dict[str, object]:
    """Return the state of torch's AdamW."""
    count = np.full((), run.optimizer_count, np.float32)
    state: dict[int, object] = {}
    described: list[object] = []
    for group, decay in zip(groups, (adam.weight_decay, 0.0), strict=True):
        first = len(state)
        for parameter in group:
            moments = {"exp_avg": EXP_AVG, "exp_avg_sq": EXP_AVG_SQ}
            state[len(state)] = {
                "step": Outgoing("step", "float32", (), lambda: count),
                **{key: _moment(run, parameter, kind) for key, kind in moments.items()},
            }
        described.append({
            "weight_decay": decay, "lr": schedule.rate(run.schedule_count), "betas": (adam.beta1, adam.beta2),
            "eps": adam.epsilon, "amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
            "differentiable": False, "fused": True, "decoupled_weight_decay": True, "initial_lr": schedule.peak,
            "params": list(range(first, len(state))),
        })  # fmt: skip
    return {"state": state, "param_groups": described}


def _moment(run: ExportedRun, parameter: NamedParameter, kind: str) -> Outgoing:
    rule, array = parameter.rule, run.parameters[parameter.rule.ours]
    real = unpadded(array.axes, array.shape, run.vocab_size)
    make = partial(model_directory.tensor, rule, array, kind, parameter.layer, full_box(real))
    return Outgoing(parameter.name, "float32", rule.form.shape(real), make)


def _scheduler(run: ExportedRun, schedule: TrainerSchedule) -> dict[str, object]:
    """Return the state of torch's LambdaLR."""
    rates = [schedule.rate(run.schedule_count)] * 2
    return {
        "base_lrs": [schedule.peak] * 2, "last_epoch": run.schedule_count, "_step_count": run.schedule_count + 1,
        "_is_initial": False, "_get_lr_called_within_step": False, "_last_lr": rates,
        "lr_lambdas": [None, None] if schedule.kind == "constant" else [{}, {}],
    }  # fmt: skip


def _state(run: ExportedRun, batch: int, arguments: ForeignConfig) -> dict[str, object]:
    """Return the state of Trainer; epoch is that of data without a length.

    A resumed Trainer takes its intervals from here, whatever its arguments say.
    """
    total = run.config.trainer.num_train_steps
    control = ("should_epoch_stop", "should_evaluate", "should_log", "should_save", "should_training_stop")
    return {
        "global_step": run.step, "epoch": run.step / total, "max_steps": total, "num_train_epochs": 1,
        "train_batch_size": batch, "log_history": [], **{name: arguments[name] for name in _INTERVALS},
        "stateful_callbacks": {"TrainerControl": {"args": dict.fromkeys(control, False), "attributes": {}}},
    }  # fmt: skip


def _arguments(run: ExportedRun, adam: AdamConfig, schedule: TrainerSchedule, batch: int) -> dict[str, ForeignValue]:
    """Return the TrainingArguments that continue the run."""
    arguments: dict[str, ForeignValue] = {
        "learning_rate": schedule.peak, "lr_scheduler_type": schedule.kind, "warmup_steps": schedule.warmup,
        "max_steps": schedule.total, "adam_beta1": adam.beta1, "adam_beta2": adam.beta2, "adam_epsilon": adam.epsilon,
        "weight_decay": adam.weight_decay, "max_grad_norm": adam.max_grad_norm or 0.0,
        "per_device_train_batch_size": batch, "seed": run.config.trainer.seed, **_INTERVALS,
    }  # fmt: skip
    if schedule.settings:
        arguments["lr_scheduler_kwargs"] = dict(schedule.settings)
    if run.config.trainer.precision().compute == "bfloat16":
        arguments["bf16"] = True
    return arguments


def _write(path: str, value: object) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2, sort_keys=True)
