"""Export of a run to GPT-NeoX: weights, optimizer, schedule and arguments."""

from __future__ import annotations

import os

import numpy as np
import yaml

from midstream_engine.checkpoint.boxes import full_box
from midstream_engine.config.model import LlamaConfig, LmConfig, NeoxConfig
from midstream_engine.interop.deepspeed.checkpoint_files import (
    DeepSpeedState,
    state_of,
    write_model,
    write_newest,
    write_optimizer,
)
from midstream_engine.interop.deepspeed.flat_rows import TheirParameter
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.exported_run import MASTER, ExportedRun
from midstream_engine.interop.exported_settings import adam_of, check_rates, widened
from midstream_engine.interop.exporters import Exported, ExportOptions
from midstream_engine.interop.huggingface.names import TensorRule, tied_head, unpadded
from midstream_engine.interop.neox.export_arguments import arguments_of, schedule_of
from midstream_engine.interop.neox.names import sources_of
from midstream_engine.interop.neox.revision import BLOCKED
from midstream_engine.interop.neox.tensors import FIRST_BLOCK, ROWS, TIED, Key, Merging, MlpNames
from midstream_engine.interop.torch_saving import save

MLP = MlpNames("mlp.linear1", "mlp.linear1", "mlp.linear2")  # since 2024-09-07
_ORDER = ("input_layernorm", "attention.query_key_value", "attention.dense", "post_attention_layernorm", MLP.up,
          MLP.down)  # fmt: skip


def export(run: ExportedRun, directory: str, options: ExportOptions) -> Exported:
    """Write the run to ``directory``: ``latest`` and ``global_step*``; see `Exporter`."""
    stages, ranks = options.pipe_parallel_size, options.model_parallel_size
    parameters = parameters_of(run)
    states = [_state(run, parameters, options, rank) for rank in range(ranks)]
    schedule = schedule_of(run, states[0].adam)
    check_rates(run, "GPT-NeoX", schedule.rate)
    arguments = arguments_of(run, states[0], stages)
    tag = f"global_step{run.step}"
    folder = os.path.join(directory, tag)
    os.makedirs(os.path.join(folder, "configs"))
    with open(os.path.join(folder, "configs", "midstream.yml"), "w", encoding="utf-8") as file:
        yaml.safe_dump(arguments, file, sort_keys=False)
    client = {
        "lr_scheduler": schedule.state(run.schedule_count), "iteration": run.step,
        "args": {
            name: arguments[name.replace("_", "-")]
            for name in ("num_layers", "hidden_size", "num_attention_heads", "make_vocab_size_divisible_by")
        },
    }  # fmt: skip
    for state in states:
        if stages:
            _write_layers(folder, state, [key for key, _ in parameters])
        write_model(folder, state, None if stages else state.weights(), client)
        write_optimizer(folder, state)
    write_newest(directory, tag)
    notes = [
        "the data stays where it is: configs/midstream.yml has no data-path and no tokenizer, and needs both",
        "the state of torch's random generators is not in it: configs/midstream.yml has no_load_rng",
    ]
    return Exported([tag, "latest"], [*notes, *widened(run)])


def _state(
    run: ExportedRun, parameters: list[tuple[Key, TheirParameter]], options: ExportOptions, rank: int
) -> DeepSpeedState:
    """Return the state of a tensor-parallel rank."""
    model, ranks = run.config.model, options.model_parallel_size
    parallel = bool(getattr(model, "use_parallel_residual", False))
    merging = Merging(model.num_heads, model.kv_heads, True, model.gated_mlp, parallel)
    named: list[TheirParameter] = []
    for key, parameter in parameters:

        def read(kind: str, name: str = key[1], full: TheirParameter = parameter) -> np.ndarray:
            return merging.split(name, "fp32" if kind == MASTER else kind, full.read(kind), ranks)[rank]

        shape = merging.rank_shape(key[1], parameter.shape, ranks)
        name = _name(key, model, options.pipe_parallel_size)
        named.append(TheirParameter(name, shape, parameter.decays, read if ranks > 1 else parameter.read))
    return state_of(run, named, options.processes, rank, ranks, options.zero_stage)


def parameters_of(run: ExportedRun) -> list[tuple[Key, TheirParameter]]:
    """Return NeoX's parameters with their keys, in the order of its module.

    Raises:
        ConversionError: NeoX has no such model, or decays other parameters.
    """
    model = run.config.model
    if not isinstance(model, LlamaConfig | NeoxConfig):
        raise ConversionError(f"model.type: {type(model).__name__.removesuffix('Config').lower()} here, and GPT-NeoX "
                              "gets llama or neox (hint: --to huggingface)")  # fmt: skip
    rules: dict[tuple[int | None, str], list[TensorRule]] = {}
    for rule, (layer, name, _) in sources_of(model, MLP, BLOCKED):
        rules.setdefault((layer, name), []).append(rule)
    parameters: list[tuple[Key, TheirParameter]] = []
    for (layer, name), sources in rules.items():
        layers = range(model.num_layers) if layer is None else (0,)
        for place in layers:
            number = place + FIRST_BLOCK if layer is None else layer
            parameters.append(((number, name), _parameter(run, model, name, sources, place)))
    decays = adam_of(run, "GPT-NeoX").weight_decay
    for (_, name), parameter in parameters:
        plain = name.endswith(".bias") or "norm" in name
        if decays and parameter.decays == plain:
            raise ConversionError(f"{name} {'decays' if plain else 'does not decay'} here, and in GPT-NeoX it "
                                  f"{'does not' if plain else 'does'} (optimizer.weight_decay_modules)")  # fmt: skip
    return sorted(parameters, key=lambda pair: (pair[0][0], _place(pair[0][1])))


def _place(name: str) -> tuple[int, bool]:
    """Return the place of a parameter in its layer's module."""
    module, _, kind = name.rpartition(".")
    return _ORDER.index(module) if module in _ORDER else 0, kind == "bias"


def _parameter(run: ExportedRun, model: LmConfig, name: str, rules: list[TensorRule], layer: int) -> TheirParameter:
    held = [run.parameters[rule.ours] for rule in rules]
    real = [unpadded(parameter.axes, parameter.shape, run.vocab_size) for parameter in held]
    shapes = [rule.form.shape(shape) for rule, shape in zip(rules, real, strict=True)]

    def read(kind: str) -> np.ndarray:
        parts = [
            rule.form.theirs(parameter.read(kind, layer, full_box(shape)))
            for rule, parameter, shape in zip(rules, held, real, strict=True)
        ]
        return parts[0] if len(parts) == 1 else joined(model, name, parts)

    shape = (sum(shape[0] for shape in shapes), *shapes[0][1:])
    return TheirParameter(name, shape, held[0].decays, read)


def joined(model: LmConfig, name: str, parts: list[np.ndarray]) -> np.ndarray:
    """Return one array of query, key and value, or of gate and up."""
    if name.startswith(MLP.up):
        gate, up = parts  # in the order of Hugging Face's names
        return np.concatenate([up, gate])
    if model.num_heads != model.kv_heads:
        return np.concatenate(parts)
    size = model.head_size
    heads = [stack.reshape(model.num_heads, size, *stack.shape[1:]) for stack in parts]
    return np.concatenate(heads, 1).reshape(-1, *parts[0].shape[1:])


def _name(key: Key, model: LmConfig, stages: int) -> str:
    """Return DeepSpeed's name of a parameter.

    A tied one of a pipeline is in a module of its own.
    """
    layer, name = key
    if stages and tied_head(model) and name == ROWS[0]:
        return TIED
    return f"{layer}.{name}" if stages else f"sequential.{layer}.{name}"


def _write_layers(folder: str, state: DeepSpeedState, keys: list[Key]) -> None:
    """Write a file for each layer of the pipeline that has parameters."""
    weights = state.weights()
    layers: dict[int, dict[str, object]] = {}
    for layer, name in keys:
        full = _name((layer, name), state.run.config.model, 1)
        layers.setdefault(layer, {})[name] = weights[full]
    for layer, named in layers.items():
        save(os.path.join(folder, f"layer_{layer:02d}-model_{state.model_rank:02d}-model_states.pt"), named)
