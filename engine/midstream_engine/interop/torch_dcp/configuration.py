"""torchtitan's configuration as ours: what it writes with ``--debug.save_config_file``, or our own YAML.

Its checkpoints have neither the model's heads nor the schedule.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping

from midstream_core.json_types import JsonValue
from midstream_engine.config import yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.model import LlamaConfig
from midstream_engine.config.rope import DefaultRopeConfig, Llama3RopeConfig, RopeConfig
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_run import encoded_model
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue

_PLACES = ("config.json", "../config.json", "../../config.json", "config.yaml", "../config.yaml", "../../config.yaml")
_BATCHES = ("global_batch_size", "local_batch_size")


def read_config(directory: str, given: str | None) -> tuple[dict[str, ForeignValue], bool]:
    """Return the run's configuration, and whether it is torchtitan's.

    Raises:
        ConversionError: There is none, or it is damaged.
    """
    candidates = [given] if given else [os.path.join(directory, place) for place in _PLACES]
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is None:
        raise ConversionError(
            f"{given or directory}: the run's configuration is missing (hint: --config names what torchtitan wrote "
            "with --debug.save_config_file, or a YAML file of this engine)"
        )
    try:
        if path.endswith(".json"):
            with open(path, encoding="utf-8") as file:
                value: object = json.load(file)
        else:
            value = yaml_file.load(path)
    except (ConfigError, OSError, ValueError) as error:
        raise ConversionError(f"{path}: cannot be read: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: expected keys and values")
    return value, "model_spec" in value


def translate(described: ForeignConfig, ranks: int | None, notes: list[str]) -> dict[str, ForeignValue]:
    """Return our mapping of torchtitan's configuration.

    What the checkpoint says of the optimizer is not in it.

    Args:
        described: torchtitan's configuration.
        ranks: Data-parallel ranks of the checkpoint's loader; None: unknown.
        notes: Gets a line for each choice.

    Raises:
        ConversionError: A value is not supported, or a section is missing.
    """
    try:
        training, rates = described["training"], described["lr_scheduler"]
        steps = _total(training, rates)
        model = _model(described["model_spec"]["model"], int(training["seq_len"]))
        types = f"p={training.get('dtype', 'float32')},c={training.get('mixed_precision_param', 'bfloat16')}"
        trainer: dict[str, JsonValue] = {
            "num_train_steps": steps, "train_batch_size": _batch(training, ranks), "mp": types,
            "seed": int((described.get("debug") or {}).get("seed") or 0),
        }  # fmt: skip
        if types.endswith("c=float32"):
            trainer["matmul_precision"] = "highest"
        warmup, decay = _lengths(rates, steps)
        shape = str(rates.get("decay_type", "linear"))
        if shape not in ("linear", "cosine"):
            raise ConversionError(f"lr_scheduler.decay_type: {shape} has no counterpart; linear and cosine are read")
        if steps != int(training["steps"]):
            notes.append(f"training.steps: {training['steps']}; the schedule's {steps} steps are the run's here")
        optimizer = {
            "type": "adam", "lr_schedule": shape, "min_lr_ratio": float(rates.get("min_lr_factor", 0.0)),
            "warmup": _steps(warmup, steps), "decay": _steps(decay, steps - warmup if decay else steps),
            "max_grad_norm": float(training.get("max_norm", 1.0)) or None,
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConversionError(f"torchtitan's configuration lacks or has another {error}"[:300]) from None
    return {"model": encoded_model(model), "optimizer": optimizer, "trainer": trainer}


def rate_factor(described: ForeignConfig) -> Callable[[int], float]:
    """Return torchtitan's factor of the learning rate by the number of updates before."""
    rates = described["lr_scheduler"]
    steps = _total(described["training"], rates)
    warmup, decay = _lengths(rates, steps)
    least = float(rates.get("min_lr_factor", 0.0))
    cosine = rates.get("decay_type", "linear") == "cosine"

    def factor(count: int) -> float:
        if count < warmup:
            return (count + 1) / warmup
        done = max(count - (steps - decay), 0) / max(decay, 1)
        return least + (1 - least) * (0.5 * (1 + math.cos(math.pi * done)) if cosine else 1 - done)

    return factor


def warmup_of(described: ForeignConfig) -> int:
    """Return the updates of torchtitan's warmup."""
    return _lengths(described["lr_scheduler"], _total(described["training"], described["lr_scheduler"]))[0]


def _total(training: ForeignConfig, rates: ForeignConfig) -> int:
    """Return the updates of the schedule."""
    steps = int(training["steps"])
    total = int(rates.get("total_steps") or steps)
    if total < steps:
        raise ConversionError(f"lr_scheduler.total_steps: {total}, fewer than the run's {steps}, is not read")
    return total


def _lengths(rates: ForeignConfig, steps: int) -> tuple[int, int]:
    """Return the updates of warmup and decay."""
    warmup = min(int(rates.get("warmup_steps", 200)), steps)
    share = rates.get("decay_ratio")
    decay = steps - warmup if share is None else min(round(steps * float(share)), steps - warmup)
    return warmup, decay


def _steps(count: int, cycle: int) -> float:
    """Return a number of updates as our schedule has it.

    There 1 and less is a fraction of ``cycle``.
    """
    return float(count) if count != 1 else 1.5 / max(cycle, 2)


def _batch(training: ForeignConfig, ranks: int | None) -> int:
    of_all, own = (int(training.get(name, -1)) for name in _BATCHES)
    if of_all > 0:
        return of_all
    if ranks is None:
        raise ConversionError("training.global_batch_size: -1, and the checkpoint has no loader's world_size")
    return own * ranks


def _model(model: ForeignConfig, seq_len: int) -> LlamaConfig:
    layers = model["layers"]
    first = _without_names(layers[0])
    for number, layer in enumerate(layers):
        if _without_names(layer) != first:
            raise ConversionError(f"model.layers.{number}: differs from the first layer, and ours are all equal")
    attention, mlp = first["attention"], first["feed_forward"]
    for name, value in (("qk_norm", attention.get("qk_norm")), ("moe", first.get("moe"))):
        if value is not None:
            raise ConversionError(f"model.layers.0.{name}: has no counterpart")
    biased = [name for name, section in _sections(model) if section.get("bias") is True]
    if biased or mlp is None:
        raise ConversionError(f"model.{(biased or ['layers.0.feed_forward'])[0]}: biases and other MLPs are not read")
    norms = {first["attention_norm"]["eps"], first["ffn_norm"]["eps"], model["norm"]["eps"]}
    if len(norms) > 1:
        raise ConversionError(f"model.norm.eps: {sorted(norms)}, and ours have one epsilon")
    heads = int(attention["n_heads"])
    return LlamaConfig(
        seq_len=seq_len, hidden_dim=int(model["dim"]), num_layers=len(layers), num_heads=heads,
        num_kv_heads=int(attention.get("n_kv_heads") or heads), head_dim=attention.get("head_dim"),
        intermediate_dim=int(mlp["w1"]["out_features"]), layer_norm_epsilon=float(norms.pop()),
        rope=_rope(attention["rope"]), tie_word_embeddings=bool(model.get("enable_weight_tying")),
        pad_vocab_to_multiple=int(model["vocab_size"]),
    )  # fmt: skip


def _rope(rope: ForeignConfig) -> RopeConfig:
    theta, scaling = float(rope["theta"]), rope.get("scaling", "none")
    if scaling == "none" or (scaling == "yarn" and float(rope["rope_factor"]) <= 1.0):
        return DefaultRopeConfig(theta)
    if scaling != "llama":
        raise ConversionError(f"model.layers.0.attention.rope.scaling: {scaling} has no counterpart")
    factor, low, high = (float(rope[name]) for name in ("scaling_factor", "low_freq_factor", "high_freq_factor"))
    return Llama3RopeConfig(theta, factor, low, high, int(rope["original_max_position_embeddings"]))


def _without_names(settings: ForeignValue) -> ForeignValue:
    """Return a section without functions, whose text has an address."""
    if isinstance(settings, Mapping):
        return {key: _without_names(value) for key, value in settings.items() if key != "param_init"}
    return settings


def _sections(settings: ForeignValue, name: str = "") -> list[tuple[str, ForeignValue]]:
    """Return all sections in a section, by their dotted names."""
    if isinstance(settings, list):
        settings = {str(number): inner for number, inner in enumerate(settings)}
    if not isinstance(settings, dict):
        return []
    sections = [(name, settings)]
    for key, inner in settings.items():
        if key != "param_init":
            sections += _sections(inner, f"{name}.{key}" if name else str(key))
    return sections
