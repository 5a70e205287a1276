"""Levanter's arrays on the disk, read with TensorStore in parts.

Format A is zarr 2, a directory for each array. Formats B and C are zarr 3 in one OCDBT store; C also has a
``manifest.json``.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_core import levanter_checkpoints
from midstream_core.json_types import JsonValue
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignValue

METADATA = "metadata.json"
ZARR2 = "A"  # the format of Levanter 1.2; later releases write B and C
_OCDBT = "manifest.ocdbt"
_STATE = re.compile(r"^model/|^model_averaging/|^opt_state/.*/(?:mu|nu)/")
_SECOND_MOMENT = re.compile(r"^opt_state/.*/nu/")


@dataclass(frozen=True)
class StoredArray:
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
            ConversionError: The array cannot be read, or has values that no training state has.
        """
        try:
            stored = self.store if layer is None else self.store[layer]
            values = np.asarray(stored.read().result())
        except ValueError as error:
            raise ConversionError(f"{self.name}: cannot be read: {_line(error)}") from None
        _check_values(self.name, values)
        return values


def _check_values(name: str, values: np.ndarray) -> None:
    """Raise ConversionError where parameters or moments have impossible values.

    Arrays have no checksum of their own, so that a bit that changed on a disk is read without an error.
    """
    if not _STATE.search(name) or values.dtype.kind in "iub":
        return
    what = ""
    if not np.isfinite(values).all():
        what = "a value that is not finite"
    elif _SECOND_MOMENT.search(name) and (values < 0).any():
        what = "a second moment below 0"
    if what:
        raise ConversionError(f"{name}: has {what}: the checkpoint is damaged, or the run had diverged")


def find(path: str, config: str | None = None) -> str:
    """Return the checkpoint at ``path``, or the newest one of the run there.

    Args:
        path: The checkpoint's own directory, or the run's directory.
        config: Path of the run's configuration, whose ``temporary_base_path`` is looked at too.

    Raises:
        ConversionError: There is no finished one.
    """
    if os.path.exists(os.path.join(path, METADATA)):
        return path
    path = os.path.abspath(path)
    chosen = None
    if os.path.isdir(path):
        places = levanter_checkpoints.Places(os.listdir, os.path.isfile, _text)
        try:
            chosen = levanter_checkpoints.choose(places, path, _text(config) if config else "")
        except ValueError as error:
            raise ConversionError(str(error)) from None
    if chosen is None:
        raise ConversionError(f"{path}: no checkpoint of Levanter's with a {METADATA}: none was finished")
    return chosen.path


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def read_metadata(directory: str) -> dict[str, ForeignValue]:
    """Return ``{step, timestamp, is_temporary}``.

    Raises:
        ConversionError: The file is damaged or has no step.
    """
    path = os.path.join(directory, METADATA)
    try:
        with open(path, encoding="utf-8") as file:
            metadata = json.load(file)
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON, perhaps truncated ({_line(error)})") from None
    if not isinstance(metadata, dict) or "step" not in metadata:
        raise ConversionError(f"{path}: has no step")
    return metadata


def open_arrays(directory: str) -> tuple[str, dict[str, StoredArray]]:
    """Return the format, and every array by name.

    Raises:
        ConversionError: An array cannot be opened.
    """
    import tensorstore as ts  # loads slowly, and only this import needs it

    base = {"driver": "file", "path": os.path.abspath(directory) + "/"}
    if os.path.exists(os.path.join(directory, _OCDBT)):
        kind = "C" if os.path.exists(os.path.join(directory, "manifest.json")) else "B"
        root: dict[str, JsonValue] = {"driver": "ocdbt", "base": base}
        try:
            keys = [key.decode() for key in ts.KvStore.open(root).result().list().result()]
        except ValueError as error:
            raise ConversionError(f"{directory}: its OCDBT store cannot be read: {_line(error)}") from None
        names = [key.removesuffix("/zarr.json") for key in keys if key.endswith("/zarr.json")]
        specs = {name: {"driver": "zarr3", "kvstore": {**root, "path": f"{name}/"}} for name in names}
    else:
        kind = ZARR2
        names = [os.path.relpath(parent, directory) for parent, _, files in os.walk(directory) if ".zarray" in files]
        for name in names:
            _check_chunks(directory, name)
        specs = {
            name: {"driver": "zarr", "kvstore": {**base, "path": os.path.join(os.path.abspath(directory), name) + "/"}}
            for name in names
        }
    if not specs:
        raise ConversionError(f"{directory}: holds no arrays")
    try:
        return kind, {
            name: StoredArray(name, ts.open(spec, read=True).result()) for name, spec in sorted(specs.items())
        }
    except ValueError as error:
        raise ConversionError(f"{directory}: an array cannot be opened: {_line(error)}") from None


def _check_chunks(directory: str, name: str) -> None:
    """Check that a zarr 2 array without a fill value has all its chunks.

    TensorStore stores each chunk in that case, and reads a missing chunk as zeros.

    Raises:
        ConversionError: One is missing or empty, or ``.zarray`` cannot be read.
    """
    folder = os.path.join(directory, name)
    try:
        with open(os.path.join(folder, ".zarray"), "rb") as file:
            described = json.load(file)
        grid = [
            math.ceil(length / chunk) for length, chunk in zip(described["shape"], described["chunks"], strict=True)
        ]
        if described["fill_value"] is not None:
            return
        separator = described.get("dimension_separator", ".")
    except (OSError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise ConversionError(f"{folder}/.zarray cannot be read: {_line(error)}") from None
    for index in itertools.product(*map(range, grid)):
        chunk = os.path.join(folder, separator.join(map(str, index)) or "0")
        if not os.path.exists(chunk) or not os.path.getsize(chunk):
            raise ConversionError(f"{chunk}: missing: this chunk of array {name} was not saved, or not copied")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
