"""Translate Levanter's YAML to our configuration, with its code's defaults.

A field without a counterpart is left out with a line, or refused by name where it changes the training; nothing is said
about a value that changes nothing (``config/levanter_fields.py``).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace

from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.learning_rate import LEVANTER_1_2, RULES, ScheduleError, rate_parts, rate_settings
from midstream_core.precision import JAX_OPTION, levanter_products, precision_of
from midstream_engine.config import levanter_fields, yaml_file
from midstream_engine.config.errors import ConfigError
from midstream_engine.config.load import from_mapping
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignValue
from midstream_engine.interop.levanter.data import USED
from midstream_engine.interop.levanter.optimizer_state import MOMENTS, never_skips

# Defaults of Levanter's code that differ from ours.
_OPTIMIZER = {"learning_rate": 6e-4, "weight_decay": 0.1}
_TRAINER = {"train_batch_size": 512, "num_train_steps": 400_000, "steps_per_eval": 1000, "seed": 0}
_MODELS: dict[str, dict[str, JsonValue]] = {
    "gpt2": {"seq_len": 1024, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embed_pdrop": 0.0},
    "llama": {"seq_len": 2048, "hidden_dim": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32},
}
# Fields that say where a run began, or which machine and directories it had. The imported run has its own.
_OF_THE_START = (
    "initialize_from_checkpoint_path", "initialize_from_hf", "initialize_model_from_checkpoint_path",
    "pad_tokenizer_to_match_model", "trainer.allow_partial_checkpoint", "trainer.checkpointer.base_path",
    "trainer.checkpointer.temporary_base_path", "trainer.distributed", "trainer.id", "trainer.initialize_from",
    "trainer.jax_compilation_cache_dir", "trainer.load_checkpoint", "trainer.load_checkpoint_path", "trainer.log_dir",
)  # fmt: skip
_UNKNOWN = re.compile(r"unknown key ([A-Za-z0-9_.]+)")
_PLACES = ("config.yaml", "train_lm.yaml", "../config.yaml", "../../config.yaml")


def read_config(directory: str, given: str | None) -> tuple[dict[str, ForeignValue], str]:
    """Return the run's YAML and its path.

    The path is ``given``, or in the directory of the checkpoint or the run.

    Raises:
        ConversionError: There is none.
    """
    candidates = [given] if given else [os.path.join(directory, place) for place in _PLACES]
    path = next((path for path in candidates if os.path.isfile(path)), None)
    if path is None:
        raise ConversionError(
            f"{given or directory}: the run's configuration is missing (hint: name its YAML with --config)"
        )
    try:
        value = yaml_file.load(path)
    except (ConfigError, OSError) as error:
        raise ConversionError(str(error)) from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: expected keys and values")
    return value, path


def config_beside(path: str) -> str | None:
    """Return the configuration in a run's directory, or above it; None without one."""
    candidates = [os.path.join(path, place) for place in _PLACES[:3]]
    return next((path for path in candidates if os.path.isfile(path)), None)


def translate(
    config: dict[str, ForeignValue], rows: int, notes: list[str], *, ordered: bool, rules: str
) -> dict[str, ForeignValue]:
    """Return our mapping.

    Args:
        config: Levanter's configuration.
        rows: Rows of the embedding.
        notes: Gets a line for each key without a counterpart, and for each choice.
        ordered: The data and its order are imported separately.
        rules: Rules of the learning-rate schedule of the release that wrote the checkpoint, unless ``config`` has
            ``optimizer.schedule_rules``.

    Raises:
        ConversionError: A value is not supported.
    """
    model = dict(config.get("model") or {})
    kind = model.get("type", "llama")
    if kind not in _MODELS:
        raise ConversionError(f"model.type: {kind!r} is not read; gpt2 and llama are")
    if "max_seq_len" in model:
        model["seq_len"] = model.pop("max_seq_len")
    optimizer = dict(config.get("optimizer") or {})
    if optimizer.get("type", "adam") not in MOMENTS:
        raise ConversionError(f"optimizer.type: {optimizer['type']!r} is not read; {', '.join(MOMENTS)} are")
    defaults = dict(_OPTIMIZER)
    if optimizer.get("type") == "muon":
        defaults |= {"weight_decay": 0.0, "coefficient_type": "simple" if rules == LEVANTER_1_2 else "quintic"}
    notes += _default_notes(config)
    if never_skips(optimizer):
        notes.append("optimizer.skip_bad_steps: 1 is what Levanter makes of true: a window of one update skips none")
        optimizer["skip_bad_steps"] = False
    data = dict(config.get("data") or {})
    tokenizer = str(data.get("tokenizer") or "")
    local = os.path.exists(os.path.expanduser(tokenizer)) and tokenizer != ""
    if tokenizer and not local and not ordered:
        notes.append(
            f"data.tokenizer: {tokenizer} is no path here: ids:{rows} stands for it, and for text tokenized already"
        )
    kept = {key: data[key] for key in ("block_cross_document_attention",) if key in data}
    ignored = data.get("ignore_token_id")
    if ignored is not None and ignored >= 0:
        kept["ignore_token_id"] = ignored
    others = {key: item for key, item in data.items() if key not in (*kept, "tokenizer", "ignore_token_id")}
    if ordered:
        for key in sorted(others.keys() - USED):
            notes += _left_out(f"data.{key}", others[key])
    elif dropped := [f"data.{key}" for key in sorted(others) if not _is_neutral(f"data.{key}", others[key])]:
        notes.append(f"{', '.join(dropped)}: not carried over; neither is the order of the data")
    mapping: dict[str, ForeignValue] = {
        **{key: item for key, item in config.items() if key not in ("data_seed", "train_seq_len")},
        "data": {"tokenizer": tokenizer if local else f"ids:{rows}", **kept},
        "model": {"type": kind, **_MODELS[kind], **model, "pad_vocab_to_multiple": rows},
        "optimizer": {**defaults, "schedule_rules": rules, **optimizer},
        "trainer": _with_products({**_TRAINER, **dict(config.get("trainer") or {})}, notes),
    }
    for name in _OF_THE_START:
        _remove(mapping, name)
    resolved = _without_unknown(mapping, notes)
    notes += _schedule_notes(resolved)
    return resolved


def _default_notes(config: JsonObject) -> list[str]:
    """Return a line on values of the schedule that are Levanter's defaults.

    A configuration that was cut short ends anywhere, and is YAML nevertheless.
    """
    defaults = {
        "optimizer": {"learning_rate": _OPTIMIZER["learning_rate"]},
        "trainer": {key: _TRAINER[key] for key in ("train_batch_size", "num_train_steps")},
    }
    lines = [
        f"{section}.{key} {value:g}"
        for section, values in defaults.items()
        for key, value in values.items()
        if key not in (config.get(section) or {})
    ]
    return [f"{', '.join(lines)}: Levanter's defaults, as the configuration has no value"] if lines else []


def _with_products(trainer: dict[str, ForeignValue], notes: list[str]) -> dict[str, JsonValue]:
    """Return the section with Levanter's precision of products.

    Where no key chooses a precision, the result has jax's default and ``notes`` gets a line.
    """
    options = trainer.get("jax_config")
    chosen = "matmul_precision" in trainer or (isinstance(options, Mapping) and JAX_OPTION in options)
    if chosen or precision_of(trainer.get("mp")).compute != "float32":
        return trainer
    notes.append(
        "trainer.matmul_precision: default, as in Levanter: products of float32 numbers are rounded to TF32 on NVIDIA "
        "GPUs and to bfloat16 on TPUs (hint: highest computes them in float32)"
    )
    return {**trainer, "matmul_precision": levanter_products(trainer)}


def _schedule_notes(resolved: dict[str, ForeignValue]) -> list[str]:
    """Return a line on the schedule's rules if other rules give other rates.

    The rules are those of the learning-rate schedule; the settings are the same.

    Raises:
        ConversionError: The settings have no schedule.
    """
    steps, settings = int(resolved["trainer"]["num_train_steps"]), rate_settings(resolved["optimizer"])
    try:
        parts = rate_parts(settings, steps)
    except ScheduleError as error:
        raise ConversionError(f"optimizer.{error}") from None
    notes = []
    for rules in RULES:
        with contextlib.suppress(ScheduleError):  # a release that rejects the settings did not write the checkpoint
            others = rate_parts(replace(settings, schedule_rules=rules), steps)
            if [replace(phase, settings=settings) for phase in others] != parts:
                notes.append(
                    f"optimizer.schedule_rules: {settings.schedule_rules}; {rules} gives other learning rates (hint: "
                    "the checkpoint's format decides, unless the YAML has schedule_rules)"
                )
    return notes


def _left_out(name: str, item: object) -> list[str]:
    """Return the lines about a field that is left out.

    Raises:
        ConversionError: The field changes the training.
    """
    if not levanter_fields.covers(name):
        return _unknown(name, item)
    try:
        return list(levanter_fields.left_out(name, item))
    except ConfigError as error:
        raise ConversionError(str(error)) from None


def _is_neutral(name: str, item: object) -> bool:
    try:
        return not item or (levanter_fields.covers(name) and not list(levanter_fields.left_out(name, item)))
    except ConfigError:
        return False


def _unknown(name: str, item: object) -> list[str]:
    """Return the line about a field of a release that is unknown here.

    Raises:
        ConversionError: The field is set, and may change the training.
    """
    if item not in (None, False, "", [], {}):
        raise ConversionError(
            f"{name}: {item!r} is unknown here and may change the training (hint: remove it from the configuration if "
            "it does not)"
        )
    return [f"{name} is unknown here, and is not set"]


def _without_unknown(mapping: dict[str, JsonValue], notes: list[str]) -> dict[str, JsonValue]:
    while True:
        try:
            loaded = from_mapping(mapping)
        except ConfigError as error:
            unknown = _UNKNOWN.search(str(error))
            if unknown is None or not _has(mapping, unknown[1]):
                raise ConversionError(str(error)) from None
            notes += _unknown(unknown[1], _remove(mapping, unknown[1]))
            continue
        notes += loaded.notes
        resolved = loaded.config.resolved()
        for name in ("id", "root"):
            resolved["trainer"][name] = None
        return resolved


def _remove(mapping: dict[str, ForeignValue], name: str) -> object:
    """Remove a field, given by its dotted name, and return its value.

    Mappings on the way to it are copied.
    """
    first, _, rest = name.partition(".")
    if not rest:
        return mapping.pop(first, None)
    if not isinstance(mapping.get(first), dict):
        return None
    mapping[first] = dict(mapping[first])
    return _remove(mapping[first], rest)


def _has(mapping: dict[str, JsonValue], name: str) -> bool:
    first, _, rest = name.partition(".")
    inner = mapping.get(first)
    return first in mapping and (not rest or (isinstance(inner, dict) and _has(inner, rest)))
