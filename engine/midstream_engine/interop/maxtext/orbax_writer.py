"""Writer of a checkpoint in Orbax's layout: arrays of zarr 3 in an OCDBT store.

Written without Orbax: https://orbax.readthedocs.io/en/latest/guides/checkpoint/checkpoint_format.html
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from midstream_core.json_types import JsonObject
from midstream_core.maxtext_checkpoints import COMMITTED, COMMITTED_MARK, ITEM, TREE
from midstream_engine.interop.array_writer import write_array

_SEQUENCE, _DICT = 1, 2  # types of keys
_HANDLER = "orbax.checkpoint.experimental.v1._src.handlers.pytree_handler.PyTreeHandler"


@dataclass(frozen=True)
class TreeArray:
    """An array to write.

    ``planes``: its parts along ``axis``, without that axis, or all of it.
    """

    name: str  # keys with dots between them
    dtype: str
    shape: tuple[int, ...]
    planes: Iterator[np.ndarray]
    axis: int = 0


def write_checkpoint(directory: str, arrays: Iterable[TreeArray], empty: Iterable[str], metadata: JsonObject) -> None:
    """Write the checkpoint ``directory``, which is new; its commit is last.

    Args:
        directory: Named after the step.
        arrays: Of the tree, in any order.
        empty: Names of leaves that have nothing.
        metadata: ``custom_metadata`` of the checkpoint.

    Raises:
        ConversionError: An array cannot be written.
    """
    folder = os.path.join(directory, ITEM)
    os.makedirs(folder)
    started = time.time_ns()
    tree = {_key(name): _leaf(name, {"value_type": "None", "skip_deserialize": True}) for name in empty}
    for array in arrays:
        write_array(folder, array.name, array.dtype, array.shape, array.planes, axis=array.axis)
        tree[_key(array.name)] = _leaf(
            array.name, {"value_type": "jax.Array", "skip_deserialize": False, "write_shape": list(array.shape)}
        )
    _write(os.path.join(folder, TREE), {
        "tree_metadata": tree, "use_ocdbt": True, "use_zarr3": True, "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    })  # fmt: skip
    # On object stores Orbax looks for this file, elsewhere for the time of the commit.
    for committed in (folder, directory):
        with open(os.path.join(committed, COMMITTED_MARK), "w", encoding="utf-8") as file:
            file.write(f"Checkpoint commit was successful to {committed}")
    _write(os.path.join(directory, COMMITTED), {
        "item_handlers": {ITEM: _HANDLER}, "metrics": {}, "performance_metrics": {}, "init_timestamp_nsecs": started,
        "commit_timestamp_nsecs": time.time_ns(), "custom_metadata": metadata,
    })  # fmt: skip


def _key(name: str) -> str:
    return str(tuple(name.split(".")))


def _leaf(name: str, value: JsonObject) -> JsonObject:
    keys = [{"key": key, "key_type": _SEQUENCE if key.isdecimal() else _DICT} for key in name.split(".")]
    return {"key_metadata": keys, "value_metadata": value}


def _write(path: str, value: JsonObject) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
