"""Export of a run as a distributed checkpoint of torch, with torchtitan's names."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.model import LlamaConfig
from midstream_engine.config.optimizer import AdamConfig
from midstream_engine.config.rope import Llama3RopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import EXP_AVG as OUR_MU
from midstream_engine.interop.exported_run import EXP_AVG_SQ as OUR_NU
from midstream_engine.interop.exported_run import MASTER, ExportedParameter, ExportedRun
from midstream_engine.interop.exported_settings import adam_of, batch_of, check_rates, rates_of
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.huggingface.names import TensorRule, unpadded
from midstream_engine.interop.tensor_files import Outgoing
from midstream_engine.interop.torch_dcp.configuration import rate_factor
from midstream_engine.interop.torch_dcp.names import (
    EXP_AVG,
    EXP_AVG_SQ,
    FUSED,
    HEAD,
    PARTS,
    TABLE,
    fused,
    rules_of,
)
from midstream_engine.interop.torch_dcp.writer import Entry, write

_TITAN = "torchtitan 0.3"
SETTINGS = "torchtitan.json"
_KINDS = {EXP_AVG: OUR_MU, EXP_AVG_SQ: OUR_NU}


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write ``step-N``, and ``torchtitan.json`` with its settings; see `Exporter`."""
    model = _model(run)
    adam = adam_of(run, _TITAN)
    _check_counts(run)
    described = _settings(run, model, adam)
    factor = rate_factor(described)
    check_rates(run, _TITAN, lambda count: adam.learning_rate * factor(count))
    parameters = list(_parameters(run, model))
    names = [parameter.name for parameter in parameters]
    name = f"step-{run.step}"
    folder = os.path.join(directory, name)
    os.makedirs(folder)
    write(folder, _entries(run, model, adam, parameters), options.max_shard_size)
    with open(os.path.join(directory, SETTINGS), "w", encoding="utf-8") as file:
        json.dump(described, file, indent=2)
    decays = {parameter.decays for parameter in parameters}
    notes = [
        "the loader's position is not in it: checkpoint.exclude_from_loading has to name dataloader; "
        f"{run.step} batches of {batch_of(run, _TITAN)} were read",
        f"{SETTINGS} has the model, optimizer, schedule and training that the configuration of torchtitan has to have",
        f"moments of queries, keys and values are there twice: joined ({FUSED}) and apart, for either layer",
    ]
    if adam.weight_decay and len(decays) > 1:
        without = ", ".join(sorted({name.split(".")[-2] for name, parameter in zip(names, parameters, strict=True)
                                    if not parameter.decays}))  # fmt: skip
        notes.append(f"weight decay is 0 for {without}: they need a group of their own in optimizer.param_groups")
    if {array.dtype for array in run.arrays.values()} & {"bfloat16", "float16"}:
        notes.append("arrays are there in their stored types; torch casts them to those of the model it loads into")
    return Exported([name, SETTINGS], notes)


class _Parameter:
    """A parameter of torchtitan's model: its name, its form, and ours."""

    def __init__(self, run: ExportedRun, rule: TensorRule, held: ExportedParameter, layer: int) -> None:
        self.name = rule.theirs.format(layer)
        self.decays = held.decays
        self._rule, self._held, self._layer = rule, held, layer
        self._real = unpadded(held.axes, held.shape, run.vocab_size)
        self.shape = rule.form.shape(self._real)

    def read(self, kind: str) -> np.ndarray:
        """Return its values, or those of a moment. ``kind``: our prefix."""
        return self._rule.form.theirs(self._held.read(kind, self._layer, full_box(self._real)))

    def tensor(self, kind: str) -> Outgoing:
        """Return it, or a moment, to write."""
        return Outgoing(self.name, self._held.arrays[kind].dtype, self.shape, partial(self.read, kind))


def _entries(run: ExportedRun, model: LlamaConfig, adam: AdamConfig, parameters: list[_Parameter]) -> Iterator[Entry]:
    for parameter in parameters:
        yield Entry((parameter.name,), parameter.tensor(MASTER))
        if model.tie_word_embeddings and parameter.name == TABLE:
            yield Entry((HEAD,), parameter.tensor(MASTER))
    for parameter in parameters:
        moments = {name: parameter.tensor(kind) for name, kind in _KINDS.items()}
        yield from _optimizer(run, adam, parameter.name, moments, parameter.decays)
    by_name = {parameter.name: parameter for parameter in parameters}
    for parameter in parameters:
        if parameter.name.endswith(PARTS[0]):
            prefix = parameter.name.removesuffix(PARTS[0])
            apart = [by_name[prefix + end] for end in PARTS]
            moments = {name: _joined(model, apart, kind) for name, kind in _KINDS.items()}
            yield from _optimizer(run, adam, prefix + FUSED, moments, parameter.decays)
    yield Entry(("lr_scheduler", "last_epoch"), run.schedule_count)
    tokens = run.config.trainer.batch_schedule().first_sample(run.step) * run.config.model.seq_len
    yield Entry(("train_state", "step"), run.step)
    yield Entry(("train_state", "ntokens_seen"), tokens)


def _joined(model: LlamaConfig, apart: list[_Parameter], kind: str) -> Outgoing:
    def make() -> np.ndarray:
        query, key, value = (matrix.read(kind) for matrix in apart)
        return fused(query, key, value, model.num_kv_heads)

    rows = sum(matrix.shape[0] for matrix in apart)
    return Outgoing(FUSED, apart[0].tensor(kind).dtype, (rows, model.hidden_dim), make)


def _optimizer(
    run: ExportedRun, adam: AdamConfig, name: str, moments: Mapping[str, Outgoing], decays: bool
) -> Iterator[Entry]:
    """Yield the optimizer's state and settings of a parameter, as AdamW has them."""
    count = np.full((), run.optimizer_count, np.float32)
    yield Entry(("optimizer", f"state.{name}.step"), Outgoing(name, "float32", (), lambda: count))
    for kind, moment in moments.items():
        yield Entry(("optimizer", f"state.{name}.{kind}"), moment)
    rate = rates_of(adam, run.config.trainer.num_train_steps)(run.schedule_count)
    settings: dict[str, object] = {
        "lr": rate, "betas": (adam.beta1, adam.beta2), "eps": adam.epsilon,
        "weight_decay": adam.weight_decay if decays else 0.0, "amsgrad": False, "foreach": False, "maximize": False,
        "capturable": False, "differentiable": False, "fused": True, "decoupled_weight_decay": True,
        "initial_lr": adam.learning_rate,
    }  # fmt: skip
    for key, value in settings.items():
        yield Entry(("optimizer", f"param_groups.{name}.{key}"), value)


def _parameters(run: ExportedRun, model: LlamaConfig) -> Iterator[_Parameter]:
    for rule in rules_of(model):
        held = run.parameters[rule.ours]
        for layer in range(held.layers or 1):
            yield _Parameter(run, rule, held, layer)


def _model(run: ExportedRun) -> LlamaConfig:
    """Return the model. Raises ConversionError where torchtitan has none like it."""
    model = run.config.model
    if not isinstance(model, LlamaConfig):
        raise ConversionError(f"model.type: {type(model).__name__} here, and {_TITAN} gets a Llama")
    for name, value in (
        ("has_attention_bias", False), ("has_mlp_bias", False), ("use_layer_norm_weight", True),
        ("epsilon_outside_root", False), ("scale_attention", True), ("activation_function", "silu"),
    ):  # fmt: skip
        if getattr(model, name) != value:
            raise ConversionError(f"model.{name}: {getattr(model, name)!r} here, and {_TITAN}'s Llama has {value!r}")
    if getattr(model.rope, "factor", 1.0) != 1.0 and not isinstance(model.rope, Llama3RopeConfig):
        raise ConversionError(f"model.rope.factor: {getattr(model.rope, 'factor', 1.0)} has no counterpart in {_TITAN}")
    others = [name for name in run.arrays if not name.startswith((MASTER, OUR_MU, OUR_NU))]
    unknown = sorted(set(others) - {"key", "optimizer/adam/count", "optimizer/schedule/count"})
    if unknown:
        raise ConversionError(f"{run.checkpoint}: {unknown[0]} has no counterpart in {_TITAN}")
    return model


def _check_counts(run: ExportedRun) -> None:
    if not run.step == run.schedule_count == run.optimizer_count:
        raise ConversionError(
            f"{run.checkpoint}: {run.step} steps, {run.schedule_count} updates of the schedule and "
            f"{run.optimizer_count} of the optimizer, and {_TITAN} has one count"
        )


def _settings(run: ExportedRun, model: LlamaConfig, adam: AdamConfig) -> dict[str, object]:
    """Return what torchtitan's configuration has to have, by its names."""
    trainer, total = run.config.trainer, run.config.trainer.num_train_steps
    if adam.lr_schedule not in ("linear", "cosine") or adam.cycles or adam.cycle_length or adam.cooldown:
        raise ConversionError(
            f"optimizer.lr_schedule: {adam.lr_schedule}, cycles {adam.cycles or adam.cycle_length}, cooldown "
            f"{adam.cooldown} here, and {_TITAN} has one linear or cosine decay"
        )
    warmup = _steps(adam.warmup, total)
    decay = total - warmup if adam.decay is None else _steps(adam.decay, total)
    rope = model.rope
    llama3 = isinstance(rope, Llama3RopeConfig)
    scaled = {
        "scaling_factor": rope.factor, "low_freq_factor": rope.low_freq_factor,
        "high_freq_factor": rope.high_freq_factor,
        "original_max_position_embeddings": rope.original_max_position_embeddings,
    } if isinstance(rope, Llama3RopeConfig) else {}  # fmt: skip
    norm = {"normalized_shape": model.hidden_dim, "eps": model.layer_norm_epsilon}
    layer = {
        "attention": {
            "n_heads": model.num_heads, "n_kv_heads": model.num_kv_heads, "head_dim": model.head_dim,
            "dim": model.hidden_dim,
            "rope": {"dim": model.head_size, "theta": rope.theta, "scaling": "llama" if llama3 else "none", **scaled},
        },
        "feed_forward": {"w1": {"in_features": model.hidden_dim, "out_features": model.mlp_dim}},
        "attention_norm": norm, "ffn_norm": norm,
    }  # fmt: skip
    precision = trainer.precision()
    return {
        "model_spec": {"name": "llama3", "model": {
            "dim": model.hidden_dim, "vocab_size": run.vocab_size, "norm": norm,
            "enable_weight_tying": model.tie_word_embeddings, "layers": [layer] * model.num_layers,
        }},
        "optimizer": {"lr": adam.learning_rate, "betas": [adam.beta1, adam.beta2], "eps": adam.epsilon,
                      "weight_decay": adam.weight_decay},
        "lr_scheduler": {"warmup_steps": warmup, "total_steps": total, "decay_ratio": decay / total,
                         "decay_type": adam.lr_schedule, "min_lr_factor": adam.min_lr_ratio},
        "training": {"steps": total, "seq_len": model.seq_len, "global_batch_size": batch_of(run, _TITAN),
                     "max_norm": adam.max_grad_norm or 0.0, "dtype": precision.parameters,
                     "mixed_precision_param": precision.compute},
    }  # fmt: skip


def _steps(value: float, total: int) -> int:
    """Return a warmup or decay in updates, where 1 and less is a fraction."""
    return int(value * total) if value <= 1 else math.floor(value)
