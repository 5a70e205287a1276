"""Export of a run as a checkpoint of DeepSpeed, with Hugging Face's model."""

from __future__ import annotations

import json
import os

import numpy as np

from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.interop.deepspeed.checkpoint_files import (
    DeepSpeedState,
    state_of,
    write_model,
    write_newest,
    write_optimizer,
)
from midstream_engine.interop.deepspeed.flat_rows import TheirParameter
from midstream_engine.interop.exported_run import ExportedParameter, ExportedRun
from midstream_engine.interop.exported_settings import widened
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.huggingface.configuration import to_huggingface
from midstream_engine.interop.huggingface.names import TensorRule, rules_of, tied_head, unpadded

SETTINGS, GROUPS = "ds_config.json", "parameter_groups.json"
_IN_MODULE = {"embed_out.weight": "lm_head.weight"}  # since transformers 5; its files have the other name


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write the run to ``directory``: ``latest`` and ``global_step*``; see `Exporter`."""
    state = state_of(run, parameters_of(run), options.processes, zero_stage=options.zero_stage)
    tag = f"global_step{run.step}"
    folder = os.path.join(directory, tag)
    os.makedirs(folder)
    write_module(folder, state)
    write_optimizer(folder, state)
    write_newest(directory, tag)
    return Exported([tag, "latest"], described(run, directory, state))


def write_module(folder: str, state: DeepSpeedState, more: dict[str, object] | None = None) -> None:
    """Write the model file; a tied head is there under both names, as in the module."""
    weights = dict(state.weights())
    shared: dict[str, object] = {}
    tied = tied_head(state.run.config.model)
    if tied is not None:
        head = _IN_MODULE.get(tied[0], tied[0])
        weights[head] = weights[tied[1]]
        shared = {"shared_params": {head: tied[1]}}
    write_model(folder, state, weights, {"lr_scheduler": None, **shared, **(more or {})})


def described(run: ExportedRun, directory: str, state: DeepSpeedState) -> list[str]:
    """Write the configurations of model and DeepSpeed, and the optimizer's groups.

    Returns notes.
    """
    for name, settings in (
        ("config.json", to_huggingface(run.config.model, run.vocab_size, "bfloat16" if state.half else "float32")),
        (SETTINGS, state.config()),
        (
            GROUPS,
            [
                {"params": [parameter.name for parameter in group], "weight_decay": settings["weight_decay"]}
                for group, settings in zip(state.groups, state.settings(), strict=True)
            ],
        ),
    ):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(settings, file, indent=2, sort_keys=True)
    groups = "; ".join(
        f"{number}: {len(group)} parameters, weight_decay {settings['weight_decay']:g}"
        for number, (group, settings) in enumerate(zip(state.groups, state.settings(), strict=True))
    )
    return [
        f"the optimizer is AdamW with the groups of {GROUPS}: {groups}, each in the order of named_parameters",
        f"the script's schedule goes on at update {run.schedule_count}, with the learning rate {state.next_rate:.9g} "
        f"(optimizer.lr_schedule: {state.adam.lr_schedule})",
        *widened(run),
    ]


def parameters_of(run: ExportedRun) -> list[TheirParameter]:
    """Return Hugging Face's parameters in the order of ``named_parameters``."""
    rules = rules_of(run.config.model)
    outer = [rule for rule in rules if not rule.stacked]
    first = next(place for place, rule in enumerate(rules) if rule.stacked)
    before = [rule for rule in outer if rules.index(rule) < first]
    after = [rule for rule in outer if rules.index(rule) > first]
    layers = range(run.config.model.num_layers)
    stacked = [(rule, layer) for layer in layers for rule in rules if rule.stacked]
    places = [*((rule, 0) for rule in before), *stacked, *((rule, 0) for rule in after)]
    return [_parameter(run, rule, run.parameters[rule.ours], layer) for rule, layer in places]


def _parameter(run: ExportedRun, rule: TensorRule, held: ExportedParameter, layer: int) -> TheirParameter:
    real = unpadded(held.axes, held.shape, run.vocab_size)

    def read(kind: str) -> np.ndarray:
        return rule.form.theirs(held.read(kind, layer, full_box(real)))

    return TheirParameter(
        _IN_MODULE.get(rule.theirs, rule.theirs.format(layer)), rule.form.shape(real), held.decays, read
    )
