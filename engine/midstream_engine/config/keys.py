"""Which keys a configuration may have: aliases, Levanter's keys without a counterpart, and the nearest known key."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

import draccus

from midstream_engine.config import mesh, yaml_file
from midstream_engine.config.errors import ConfigError

ALIASES = {
    "trainer.per_device_train_parallelism": "trainer.per_device_parallelism",
    "trainer.jax_compilation_cache": "trainer.jax_compilation_cache_dir",
    "trainer.wandb": "trainer.tracker",
    "trainer.profiler.enabled": "trainer.profiler",
    "trainer.profiler.start_step": "trainer.profiler_start_step",
    "trainer.profiler.num_steps": "trainer.profiler_num_steps",
    "trainer.profiler.perfetto_link": "trainer.profiler_perfetto_link",
    "optimizer.haps": "optimizer.cycles",
    "optimizer.lr_schedule.type": "optimizer.lr_schedule",
    "optimizer.lr_schedule.exponent": "optimizer.cosine_exponent",
    "optimizer.lr_schedule.timescale": "optimizer.inv_sqrt_timescale",
    "optimizer.warmup_ratio": "optimizer.warmup",
    "trainer.mesh.axes.model": "trainer.model_axis_size",
    "trainer.mesh.batch_axis_name": "trainer.batch_axis",
    "trainer.mesh.compute_mapping": "trainer.compute_axis_resources",
    "trainer.mesh.param_mapping": "trainer.parameter_axis_resources",
    "trainer.mesh.shared_mapping": "trainer.axis_resources",
    "trainer.mesh.tensor_parallel_axes": "trainer.tensor_parallel_axes",
}
# Keys that may be spelled nested, ``profiler: {enabled: true}``, where ours are flat.
_NESTED = {"optimizer": ("lr_schedule",), "trainer": ("profiler", "mesh")}

_RUN_DIRECTORY = "everything of a run lies in its run directory under trainer.root"

# Levanter's keys that mean nothing here, and what happens instead.
WITHOUT_COUNTERPART = {
    "data.cache_dir": "only gs:// and https:// are one; token caches lie under trainer.root, by content",
    "data.cache_options": "token caches are built in one pass",
    "data.enforce_eos": "every document ends with EOS",
    "data.ignore_token_id": "no token is left out of the loss",
    "model.gradient_checkpointing_block_size": "each layer is a block",
    "model.reference_checkpoint": "weights from elsewhere come through midstream_engine.convert",
    "model.scan_layers": "layers are always stacked",
    "model.tokenizer": "the tokenizer is data.tokenizer",
    "trainer.allow_nondivisible_batch_size": "a batch divides over the devices; what would is named where it does not",
    "trainer.allow_partial_checkpoint": "a checkpoint is restored whole",
    "trainer.checkpointer.base_path": f"only a gs:// prefix is one; {_RUN_DIRECTORY}",
    "trainer.checkpointer.append_run_id_to_base_path": _RUN_DIRECTORY,
    "trainer.log_jaxprs": "not recorded",
    "trainer.log_xla_hlo": "not recorded",
    "trainer.ray": "there is no Ray here",
    "trainer.replica_dcn_axis_size": "the mesh has the axes data and model",
    "trainer.replica_ici_axis_size": "the mesh has the axes data and model",
    "trainer.shutdown_at_exit": "machines are left to who started them",
    "trainer.watch": "not recorded",
}

# Of those some have one where the value begins so.
_PLACES = {"data.cache_dir": ("gs://", "https://", "http://"), "trainer.checkpointer.base_path": "gs://"}


def normalise(cls: type, value: Any, notes: list[str], path: str = "") -> Any:
    """``value`` with aliases replaced, one string where a list is meant made a list, and every key checked.

    ``notes`` gets one line for each key that is accepted without effect. Raises ConfigError for an unknown key.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'the configuration'}: expected keys and values, found {value!r}")
    value = _spread(value, path)
    places = value.places if isinstance(value, yaml_file.Mapping) else {}
    cls = _choose(cls, value, path)
    hints = typing.get_type_hints(cls)
    known = {item.name for item in dataclasses.fields(cls)}
    result = yaml_file.Mapping()
    for key, item in value.items():
        full = f"{path}.{key}" if path else key
        where = f"{places[key]}: " if key in places else ""
        in_directory = item is not None and not str(item).startswith(_PLACES.get(full, ""))
        if full in WITHOUT_COUNTERPART and (key not in known or in_directory):
            notes.append(f"{where}{full} has no effect here: {WITHOUT_COUNTERPART[full]}")
            continue
        if full in ALIASES:
            key = ALIASES[full].rpartition(".")[2]
            if key in value:
                raise ConfigError(f"{where}{full} is another name of {ALIASES[full]}: give one of them")
        if key == "type" and issubclass(cls, draccus.ChoiceRegistry):
            result[key] = item
            continue
        if key not in known:
            raise ConfigError(f"{where}unknown key {full}{_nearest(full, path, known)}")
        result.places[key] = places.get(key, "")
        result[key] = _fit(hints[key], item, notes, full)
    return result


def _spread(value: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """``value`` with nested spellings of flat fields written out."""
    for key in _NESTED.get(path, ()):
        nested = value.get(key)
        if not isinstance(nested, Mapping):
            continue
        if key == "mesh":
            nested = mesh.without_replicas(nested)
        value = _flattened(value, f"{path}.{key}", nested)
    return value


def _flattened(value: Mapping[str, Any], name: str, nested: Mapping[str, Any]) -> Mapping[str, Any]:
    """``value`` with the keys of ``nested``, which is its ``name``, among its own."""
    path, _, outer = name.rpartition(".")
    places = getattr(value, "places", {})
    inner = getattr(nested, "places", {})
    result = yaml_file.Mapping({key: item for key, item in value.items() if key != outer})
    result.places = {key: place for key, place in places.items() if key != outer}
    for key, item in nested.items():
        full = f"{name}.{key}"
        where = f"{inner[key]}: " if inner.get(key) else ""
        if full not in ALIASES:
            known = {alias.removeprefix(f"{name}.") for alias in ALIASES if alias.startswith(f"{name}.")}
            raise ConfigError(f"{where}unknown key {full}{_nearest(full, name, known)}")
        flat = ALIASES[full].rpartition(".")[2]
        if flat in result:
            raise ConfigError(f"{where}{full} is another name of {path}.{flat}: give one of them")
        result[flat] = item
        result.places[flat] = inner.get(key, "")
    return result


def _choose(cls: type, value: Mapping[str, Any], path: str) -> type:
    """The dataclass that ``value`` describes: of a choice, the one that ``type`` names."""
    if not issubclass(cls, draccus.ChoiceRegistry):
        return cls
    choices = cls.get_known_choices()
    name = value.get("type", cls.default_choice_name())
    if name not in choices:
        near = difflib.get_close_matches(str(name), choices, 1, 0.0)
        raise ConfigError(
            f"{path}.type: {name!r} is not known; nearest: {near[0]} (known: {', '.join(sorted(choices))})"
        )
    return choices[name]


def _fit(hint: Any, item: Any, notes: list[str], path: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return normalise(hint, item, notes, path)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kinds = {one for one in (arguments if origin is types.UnionType else (hint,)) if one is not types.NoneType}
    if item is None and kinds <= {int, float, str, bool} and types.NoneType not in arguments:
        raise ConfigError(f"{path}: expected a value, found null; leave the key out for its default")
    if kinds == {str} and isinstance(item, (Mapping, list)):
        raise ConfigError(f"{path}: expected a text, found {_plain(item)!r}")
    if kinds <= {int, float} and isinstance(item, bool):
        raise ConfigError(f"{path}: expected a number, found {str(item).lower()}")
    if origin is types.UnionType and item is not None:
        described = [one for one in arguments if dataclasses.is_dataclass(one) and isinstance(one, type)]
        return normalise(described[0], item, notes, path) if described else item
    if origin is list:
        items = [] if item is None else item if isinstance(item, list) else [item]
        return [_fit(arguments[0], one, notes, path) for one in items]
    if origin is dict:
        if not isinstance(item or {}, Mapping):
            raise ConfigError(f"{path}: expected keys and values, found {item!r}")
        return {key: _fit(arguments[1], one, notes, f"{path}.{key}") for key, one in (item or {}).items()}
    return _plain(item)


def _plain(item: Any) -> Any:
    """``item`` without the knowledge of lines, so that it can be written again."""
    if isinstance(item, Mapping):
        return {key: _plain(one) for key, one in item.items()}
    return [_plain(one) for one in item] if isinstance(item, list) else item


def _nearest(full: str, path: str, known: set[str]) -> str:
    prefix = f"{path}." if path else ""
    near = difflib.get_close_matches(full.rpartition(".")[2], sorted(known), 1, 0.3)
    if near:
        return f"; nearest: {prefix}{near[0]}"
    return f"; known in {path or 'the configuration'}: {', '.join(sorted(known))}"
