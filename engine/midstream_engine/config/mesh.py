"""Levanter's newer spelling of the device mesh, ``trainer.mesh``, where supported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midstream_core.json_types import JsonObject
from midstream_engine.config import yaml_file
from midstream_engine.config.errors import ConfigError

_REPLICAS = ("replica", "replica_dcn")  # axes of the newer mesh that have size 1 here: `data` has their devices
_SIZES = {"data": (-1,), "replica": (1,), "replica_dcn": (-1, 1), "context": (1,)}
_MAPPINGS = ("compute_mapping", "param_mapping", "shared_mapping")
_TENSOR_PARALLEL = ["mlp", "heads"]  # axes that are sharded over `model` by default


def without_replicas(nested: JsonObject) -> JsonObject:
    """Return ``trainer.mesh`` without axes of size 1, and with a key ``axes.model``.

    Raises:
        ConfigError: An axis has a size that is unsupported here.
    """
    result = yaml_file.Mapping({key: item for key, item in nested.items() if key not in ("axes", "dcn_axes")})
    result.places = dict(getattr(nested, "places", {}))
    for key in ("axes", "dcn_axes"):
        for axis, size in _mapping(nested, key).items():
            if axis == "model" and key == "axes":
                if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                    raise ConfigError(f"trainer.mesh.axes.model: {size!r} is no number of devices")
                result["axes.model"] = size
            elif size not in _SIZES.get(axis, ()):
                allowed = " or ".join(map(str, _SIZES.get(axis, ())))
                raise ConfigError(
                    f"trainer.mesh.{key}.{axis}: {size!r}: the mesh has the axes data (all other devices) and model"
                    + (f"; {axis} is {allowed}" if allowed else "")
                )
    if result.get("axes.model", 1) > 1:
        result.setdefault("tensor_parallel_axes", list(_TENSOR_PARALLEL))
    for key in _MAPPINGS:
        if key in nested:
            result[key] = {axis: _kept(names) for axis, names in _mapping(nested, key).items()}
    return result


def _mapping(nested: JsonObject, key: str) -> Mapping[str, Any]:
    value = nested.get(key) or {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"trainer.mesh.{key}: expected keys and values, found {value!r}")
    return value


def _kept(names: Any) -> list[Any]:
    return [name for name in (names if isinstance(names, list) else [names]) if name not in _REPLICAS]
