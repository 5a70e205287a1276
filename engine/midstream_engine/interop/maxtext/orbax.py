"""Checkpoints of Orbax on the disk, read array by array with TensorStore.

Arrays are zarr 3 or 2, in one OCDBT store or in a directory each. ``_METADATA`` names them:
https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from midstream_core.json_types import JsonValue
from midstream_core.levanter_checkpoints import Places
from midstream_core.maxtext_checkpoints import COMMITTED, COMMITTED_MARK, ITEM, TREE, newest
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import ForeignConfig, ForeignValue

OCDBT = "manifest.ocdbt"
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_DESCRIBED = ("zarr.json", ".zarray")


@dataclass(frozen=True)
class OrbaxArray:
    """An array of the checkpoint that is not in memory."""

    name: str
    store: ForeignValue  # of TensorStore

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.store.shape)

    @property
    def dtype(self) -> str:
        """Its element type, by numpy's name."""
        return np.dtype(self.store.dtype.numpy_dtype).name

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of what is stored together."""
        return tuple(self.store.chunk_layout.write_chunk.shape or ())

    def read(self, axis: int = 0, place: int | None = None) -> np.ndarray:
        """Return the array, or what is at ``place`` on an axis, without that axis.

        Raises:
            ConversionError: It cannot be read.
        """
        stored = self.store if place is None else self.store[(slice(None),) * axis + (place,)]
        with _named(self.name):
            return np.asarray(stored.read().result())


class OrbaxCheckpoint:
    """A checkpoint that is open for reading; names have dots between their keys."""

    def __init__(self, directory: str) -> None:
        """Open the checkpoint and every array.

        Raises:
            ConversionError: It was not committed, or an array or a chunk of it is missing or damaged.
        """
        self.directory = directory
        self._check_committed()
        self.folder = os.path.join(directory, ITEM)
        path = os.path.join(self.folder, TREE)
        described = _object(path)
        tree = described.get("tree_metadata")
        if not isinstance(tree, dict):
            raise ConversionError(f"{path}: has no tree_metadata")
        try:
            leaves = {
                ".".join(str(key["key"]) for key in leaf["key_metadata"]): str(leaf["value_metadata"]["value_type"])
                for leaf in tree.values()
            }
        except (KeyError, TypeError) as error:
            raise ConversionError(f"{path}: a leaf of the tree lacks {error}") from None
        self.stamp: list[JsonValue] = [path, os.stat(path).st_mtime_ns]
        every_chunk = described.get("store_array_data_equal_to_fill_value") is True
        self.arrays = self._open([name for name, kind in leaves.items() if kind in _ARRAYS], every_chunk=every_chunk)

    def _check_committed(self) -> None:
        mark = os.path.join(self.directory, COMMITTED)
        committed = os.path.isfile(os.path.join(self.directory, COMMITTED_MARK))
        if not committed and type(_object(mark).get("commit_timestamp_nsecs")) is not int:
            raise ConversionError(f"{mark}: has no time of the commit: the checkpoint is not complete")

    def _open(self, names: list[str], *, every_chunk: bool) -> dict[str, OrbaxArray]:
        import tensorstore as ts  # loads slowly, and only this import needs it

        base = {"driver": "file", "path": os.path.abspath(self.folder) + "/"}
        root = {"driver": "ocdbt", "base": base} if os.path.exists(os.path.join(self.folder, OCDBT)) else base
        with _named(self.folder):
            keys = {key.decode() for key in ts.KvStore.open(root).result().list().result()}
        files = Counter(key.partition("/")[0] for key in keys)
        missing = [name for name in names if not any(f"{name}/{file}" in keys for file in _DESCRIBED)]
        if missing:
            raise ConversionError(
                f"{self.folder}: {TREE} names arrays that are missing: {', '.join(missing[:10])}"
                f"{' ...' if missing[10:] else ''}"
            )
        arrays: dict[str, OrbaxArray] = {}
        for name in sorted(names):
            driver = "zarr3" if f"{name}/{_DESCRIBED[0]}" in keys else "zarr"
            with _named(name):
                kvstore = {**root, "path": f"{root.get('path', '')}{name}/"}
                array = OrbaxArray(name, ts.open({"driver": driver, "kvstore": kvstore}, read=True).result())
            if every_chunk:
                self._check_chunks(array, files[name] - 1)
            arrays[name] = array
        return arrays

    def _check_chunks(self, array: OrbaxArray, chunks: int) -> None:
        """Raise ConversionError where a chunk is missing: it would be the fill value."""
        expected = math.prod(-(-size // length) for size, length in zip(array.shape, array.chunk, strict=True))
        if chunks < expected:
            raise ConversionError(f"{self.folder}: {array.name} has {chunks} of {expected} chunks")


def is_checkpoint(path: str) -> bool:
    """Return whether ``path`` is a checkpoint of Orbax, or a folder that has some."""
    with _refused():
        return _is_step(path) or os.path.isfile(os.path.join(path, TREE)) or newest(_FILES, path) is not None


def find(path: str) -> str:
    """Return the checkpoint at ``path``, or the finished one of the highest step.

    ``path``: a checkpoint, its ``items``, the folder of checkpoints, or the run.

    Raises:
        ConversionError: There is none.
    """
    if _is_step(path):
        return path
    if os.path.isfile(os.path.join(path, TREE)) and _is_step(os.path.dirname(os.path.abspath(path))):
        return os.path.dirname(os.path.abspath(path))
    with _refused():
        chosen = newest(_FILES, path)
    if chosen is None:
        raise ConversionError(f"{path}: no {COMMITTED} there or in a folder there: no checkpoint of Orbax was finished")
    return chosen


def _is_step(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in (COMMITTED, COMMITTED_MARK)) and os.path.isdir(
        os.path.join(path, ITEM)
    )


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


_FILES = Places(os.listdir, os.path.isfile, _text)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Context manager: a damaged description refuses the conversion."""
    try:
        yield
    except ValueError as error:
        raise ConversionError(str(error)) from None


def _object(path: str) -> ForeignConfig:
    try:
        with open(path, encoding="utf-8") as file:
            value: object = json.load(file)
    except FileNotFoundError:
        raise ConversionError(f"{path}: missing: the checkpoint is not complete") from None
    except ValueError as error:
        raise ConversionError(f"{path}: not JSON, perhaps cut off ({error})") from None
    if not isinstance(value, dict):
        raise ConversionError(f"{path}: not a JSON object")
    return value


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Context manager: TensorStore's errors name what was read."""
    try:
        yield
    except ValueError as error:
        raise ConversionError(f"{name}: cannot be read: {' '.join(str(error).split())[:200]}") from None
