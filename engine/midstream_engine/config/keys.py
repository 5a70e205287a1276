"""Keys of a configuration: aliases, Levanter's fields, the nearest known key."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

import draccus

from midstream_core.json_types import JsonObject
from midstream_core.object_store.urls import FORMS, SCHEMES
from midstream_engine.config import jax_precision, levanter_dump, levanter_fields, mesh, yaml_file
from midstream_engine.config.errors import ConfigError

ALIASES = {
    "data.format.text_key": "data.text_key",
    "model.max_seq_len": "model.seq_len",
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
    "optimizer.lr_schedule.power": "optimizer.polynomial_power",
    "optimizer.lr_schedule.decay_constant": "optimizer.inv_sqrt_decay_constant",
    "optimizer.warmup_ratio": "optimizer.warmup",
    "trainer.mesh.axes.model": "trainer.model_axis_size",
    "trainer.mesh.batch_axis_name": "trainer.batch_axis",
    "trainer.mesh.compute_mapping": "trainer.compute_axis_resources",
    "trainer.mesh.param_mapping": "trainer.parameter_axis_resources",
    "trainer.mesh.shared_mapping": "trainer.axis_resources",
    "trainer.mesh.tensor_parallel_axes": "trainer.tensor_parallel_axes",
}
# Keys that may be spelled nested, ``profiler: {enabled: true}``, where ours are flat.
_NESTED = {"data": ("format",), "optimizer": ("lr_schedule",), "trainer": ("profiler", "mesh")}

# Paths of this machine where a URL is needed. Levanter's own defaults are accepted and have no effect.
_URLS = {"data.cache_dir": (*SCHEMES, "https://", "http://"), "trainer.checkpointer.base_path": SCHEMES}
_DEFAULT_PLACES = ("cache", "cache/", "checkpoints", "checkpoints/")


def normalise(cls: type, value: object, notes: list[str], path: str = "") -> object:
    """Return ``value`` with aliases and lists normalised and every key checked.

    Aliases are replaced, and single strings become lists where a list is expected.

    ``notes`` gets one line for each key that is accepted without effect.

    Raises:
        ConfigError: A key is unknown, or a value has the wrong type.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path or 'the configuration'}: expected keys and values, found {value!r}")
    value = _spread(value, notes, path)
    cls, kind = _choose(cls, value, path)
    hints = typing.get_type_hints(cls)
    field_names = {item.name for item in dataclasses.fields(cls)}
    value, names = _renamed(value, path)
    result = yaml_file.Mapping({} if kind is None else {"type": kind})
    for key, item in value.items():
        full, place = names[key], value.places.get(key, "")
        where = f"{place}: " if place and place != f"--{full}" else ""  # the messages have the key themselves
        if key == "type" and kind is not None:
            continue
        if key in field_names:
            if not _is_local(full, item, where, notes):
                result.places[key] = place
                result[key] = _fit(hints[key], item, notes, full)
        elif levanter_fields.covers(full):
            notes += levanter_fields.left_out(full, item, where)
        else:
            raise ConfigError(f"{where}unknown key {full}{_nearest(full, path, field_names)}")
    return result


def _is_local(full: str, item: object, where: str, notes: list[str]) -> bool:
    """Return whether a URL field has a path of this machine, which is not used.

    Raises:
        ConfigError: Checkpoints were to be stored there.
    """
    if full not in _URLS or item is None or str(item).startswith(_URLS[full]):
        return False
    if item in _DEFAULT_PLACES:
        return True
    if full != "data.cache_dir":
        raise ConfigError(
            f"{where}{full}: {item!r}: checkpoints are stored in the run directory, or under {FORMS} "
            "(hint: trainer.root is the directory of all runs)"
        )
    notes.append(
        f"{where}{full} has no effect here: only gs://, s3:// and https:// have one; "
        "token caches are under trainer.root"
    )
    return True


def _renamed(value: JsonObject, path: str) -> tuple[yaml_file.Mapping, dict[str, str]]:
    """Return ``value`` with our keys, and the name by which each is given.

    A null beside another name counts as absent.

    Raises:
        ConfigError: A field is given by two names.
    """
    places = getattr(value, "places", {})
    result, names = yaml_file.Mapping(), {}
    for key, item in value.items():
        full = f"{path}.{key}" if path else key
        ours = ALIASES[full].rpartition(".")[2] if full in ALIASES else key
        if (ours != key or ours in result) and item is None:
            continue
        if result.get(ours) is not None:
            if levanter_dump.same(result[ours], item):
                continue
            alias = full if ours != key else names[ours]
            where = f"{places[key]}: " if places.get(key) else ""
            raise ConfigError(f"{where}{alias} is an alias of {ALIASES[alias]}: give one of them")
        result[ours], names[ours], result.places[ours] = item, full, places.get(key, "")
    return result, names


def _spread(value: JsonObject, notes: list[str], path: str) -> JsonObject:
    """Return ``value`` with nested spellings of flat fields flattened."""
    if path == "trainer":
        value = jax_precision.with_counterpart(value)
    for key in _NESTED.get("data" if path.startswith("data.configs.") else path, ()):
        nested = value.get(key)
        if not isinstance(nested, Mapping):
            continue
        if key == "mesh":
            nested = mesh.without_replicas(nested)
        value = _flattened(value, f"{path}.{key}", nested, notes)
    return value


def _flattened(value: JsonObject, name: str, nested: JsonObject, notes: list[str]) -> JsonObject:
    """Return ``value`` with the keys of ``nested``, its field ``name``, among its own."""
    path, _, outer = name.rpartition(".")
    places = getattr(value, "places", {})
    inner = getattr(nested, "places", {})
    result = yaml_file.Mapping({key: item for key, item in value.items() if key != outer})
    result.places = {key: place for key, place in places.items() if key != outer}
    for key, item in nested.items():
        full = f"{name}.{key}"
        where = f"{inner[key]}: " if inner.get(key) else ""
        alias = levanter_fields.canonical(full)
        if alias not in ALIASES:
            if levanter_fields.covers(full):
                notes += levanter_fields.left_out(full, item, where)
                continue
            names = {alias.removeprefix(f"{name}.") for alias in ALIASES if alias.startswith(f"{name}.")}
            raise ConfigError(f"{where}unknown key {full}{_nearest(full, name, names)}")
        flat = ALIASES[alias].rpartition(".")[2]
        if result.get(flat) is not None:
            raise ConfigError(f"{where}{full} is an alias of {path}.{flat}: give one of them")
        result[flat] = item
        result.places[flat] = inner.get(key, "")
    return result


def _choose(cls: type, value: JsonObject, path: str) -> tuple[type, str | None]:
    """Return the dataclass of ``value``, and its ``type`` if it is one of several."""
    if not issubclass(cls, draccus.ChoiceRegistry):
        return cls, None
    choices = cls.get_known_choices()
    name = value.get("type")
    if name is None:
        name = levanter_dump.kind_of(value, choices, str(cls.default_choice_name()), path)
    if not isinstance(name, str) or name not in choices:
        near = difflib.get_close_matches(str(name), choices, 1, 0.0)
        raise ConfigError(
            f"{path}.type: {name!r} is not known; nearest: {near[0]} (known: {', '.join(sorted(choices))})"
        )
    return choices[name], name


def _fit(hint: object, item: Any, notes: list[str], path: str) -> object:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return normalise(hint, item, notes, path)
    if path == "model.gradient_checkpointing" and isinstance(item, Mapping):
        return levanter_dump.gradient_checkpointing(item)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    kinds = {
        argument for argument in (arguments if origin is types.UnionType else (hint,)) if argument is not types.NoneType
    }
    if item is None and kinds <= {int, float, str, bool} and types.NoneType not in arguments:
        raise ConfigError(f"{path}: expected a value, found null (hint: omit the key for its default)")
    if kinds == {str} and isinstance(item, (Mapping, list)):
        raise ConfigError(f"{path}: expected a text, found {_plain(item)!r}")
    if kinds <= {int, float} and isinstance(item, bool):
        raise ConfigError(f"{path}: expected a number, found {str(item).lower()}")
    if origin is types.UnionType and item is not None:
        described = [
            argument for argument in arguments if dataclasses.is_dataclass(argument) and isinstance(argument, type)
        ]
        return normalise(described[0], item, notes, path) if described else item
    if origin is list:
        items = [] if item is None else item if isinstance(item, list) else [item]
        return [_fit(arguments[0], value, notes, path) for value in items]
    if origin is dict:
        if not isinstance(item or {}, Mapping):
            raise ConfigError(f"{path}: expected keys and values, found {item!r}")
        return {key: _fit(arguments[1], value, notes, f"{path}.{key}") for key, value in (item or {}).items()}
    return _plain(item)


def _plain(item: object) -> object:
    """Return ``item`` without line numbers, so that it can be written again."""
    if isinstance(item, Mapping):
        return {key: _plain(value) for key, value in item.items()}
    return [_plain(value) for value in item] if isinstance(item, list) else item


def _nearest(full: str, path: str, names: set[str]) -> str:
    prefix = f"{path}." if path else ""
    near = difflib.get_close_matches(full.rpartition(".")[2], sorted(names), 1, 0.3)
    if near:
        return f"; nearest: {prefix}{near[0]}"
    return f"; known in {path or 'the configuration'}: {', '.join(sorted(names))}"
