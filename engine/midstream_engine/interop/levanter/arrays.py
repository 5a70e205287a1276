"""Levanter's arrays on the disk, read with TensorStore in parts.

They are zarr 2 in a directory each (format A), or zarr 3 in one OCDBT store (B; C also has a ``manifest.json``).
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.interop.errors import ConversionError

METADATA = "metadata.json"
ZARR2 = "A"  # the format of Levanter 1.2; later releases write B and C
_OCDBT = "manifest.ocdbt"


@dataclass(frozen=True)
class Stored:
    """An array of the checkpoint that is not in memory."""

    name: str
    store: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.store.shape)

    @property
    def dtype(self) -> np.dtype:
        """Its element type."""
        return np.dtype(self.store.dtype.numpy_dtype)

    def read(self, layer: int | None = None) -> np.ndarray:
        """Return the array, or one layer.

        Raises:
            ConversionError: It cannot be read.
        """
        try:
            part = self.store if layer is None else self.store[layer]
            return np.asarray(part.read().result())
        except ValueError as error:
            raise ConversionError(f"{self.name}: cannot be read: {_line(error)}") from None


def find(path: str) -> str:
    """Return the checkpoint at ``path``, or the newest one by step of the run there.

    ``path``: the checkpoint's own directory, or the run's directory.

    Raises:
        ConversionError: There is no finished one.
    """
    if os.path.exists(os.path.join(path, METADATA)):
        return path
    names = os.listdir(path) if os.path.isdir(path) else []
    steps = {
        int(name.removeprefix("step-")): name
        for name in names
        if name.removeprefix("step-").isdecimal() and os.path.exists(os.path.join(path, name, METADATA))
    }
    if not steps:
        raise ConversionError(f"{path}: no checkpoint of Levanter's with a {METADATA}: none was finished")
    return os.path.join(path, steps[max(steps)])


def read_metadata(directory: str) -> dict[str, Any]:
    """Return ``{step, timestamp, is_temporary}``.

    Raises:
        ConversionError: The file is damaged or has no step.
    """
    path = os.path.join(directory, METADATA)
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON, perhaps truncated ({_line(error)})") from None
    if not isinstance(found, dict) or "step" not in found:
        raise ConversionError(f"{path}: has no step")
    return found


def open_arrays(directory: str) -> tuple[str, dict[str, Stored]]:
    """Return the format, and every array by name.

    Raises:
        ConversionError: An array cannot be opened.
    """
    import tensorstore as ts  # loads slowly, and only this import needs it

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
        kind = ZARR2
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
