"""Levanter's arrays on the disk: zarr 2 in a directory each (format A), or zarr 3 in one OCDBT store (B; C has a
``manifest.json`` beside it, too). Read with TensorStore, a part at a time."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.interop.errors import ConversionError

METADATA = "metadata.json"
_OCDBT = "manifest.ocdbt"


@dataclass(frozen=True)
class Stored:
    """An array of the checkpoint; nothing of it is in memory."""

    name: str
    store: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.store.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self.store.dtype.numpy_dtype)

    def read(self, layer: int | None = None) -> np.ndarray:
        """All of it, or one layer."""
        try:
            part = self.store if layer is None else self.store[layer]
            return np.asarray(part.read().result())
        except ValueError as error:
            raise ConversionError(f"{self.name}: cannot be read: {_line(error)}") from None


def find(path: str) -> str:
    """The checkpoint at ``path``: its own directory, or the newest by step of the run's that holds several.

    Raises ConversionError where there is none that was finished.
    """
    if os.path.exists(os.path.join(path, METADATA)):
        return path
    names = os.listdir(path) if os.path.isdir(path) else []
    steps = {
        int(name.removeprefix("step-")): name
        for name in names
        if name.removeprefix("step-").isdigit() and os.path.exists(os.path.join(path, name, METADATA))
    }
    if not steps:
        raise ConversionError(f"{path}: no checkpoint of Levanter's with a {METADATA}: none was finished")
    return os.path.join(path, steps[max(steps)])


def read_metadata(directory: str) -> dict[str, Any]:
    """``{step, timestamp, is_temporary}``."""
    path = os.path.join(directory, METADATA)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON: it was cut off ({_line(error)})") from None
    if not isinstance(found, dict) or "step" not in found:
        raise ConversionError(f"{path}: says no step")
    return found


def open_arrays(directory: str) -> tuple[str, dict[str, Stored]]:
    """Which format it is, and every array by name. Raises ConversionError where one cannot be opened."""
    import tensorstore as ts

    base = {"driver": "file", "path": os.path.abspath(directory) + "/"}
    if os.path.exists(os.path.join(directory, _OCDBT)):
        kind = "C" if os.path.exists(os.path.join(directory, "manifest.json")) else "B"
        root: dict[str, Any] = {"driver": "ocdbt", "base": base}
        try:
            keys = [key.decode() for key in ts.KvStore.open(root).result().list().result()]
        except ValueError as error:
            raise ConversionError(f"{directory}: its OCDBT store cannot be read: {_line(error)}") from None
        names = [key.removesuffix("/zarr.json") for key in keys if key.endswith("/zarr.json")]
        specs = {name: {"driver": "zarr3", "kvstore": {**root, "path": f"{name}/"}} for name in names}
    else:
        kind = "A"
        names = [os.path.relpath(parent, directory) for parent, _, files in os.walk(directory) if ".zarray" in files]
        specs = {
            name: {"driver": "zarr", "kvstore": {**base, "path": os.path.join(os.path.abspath(directory), name) + "/"}}
            for name in names
        }
    if not specs:
        raise ConversionError(f"{directory}: holds no arrays")
    try:
        return kind, {name: Stored(name, ts.open(spec, read=True).result()) for name, spec in sorted(specs.items())}
    except ValueError as error:
        raise ConversionError(f"{directory}: an array cannot be opened: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
