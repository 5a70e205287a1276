"""Writes an imported state: one array at a time, with a record of what is done, so that a killed import goes on.

An array is not put together in memory: its cells are cut from the mapped source. What is in memory is the blocks under
way to the disk, and those parts of one array that lie in the source in pieces. While an array is written, the source of
the next is read and checked. The record (``import.jsonl`` beside the arrays) names the source as it was: an import of
another source begins anew.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.checkpoint.boxes import Box, copy_rows, whole, within
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointFull
from midstream_engine.checkpoint.grid import grid_of
from midstream_engine.checkpoint.save import Written, describe_arrays, write_cells, write_rest, written_of
from midstream_engine.checkpoint.snapshot import HostArray
from midstream_engine.checkpoint.stores.directory import Directory
from midstream_engine.records import ObjectEntry, canonical_json

RECORD = "import.jsonl"
SYNC_BYTES = 1 << 30  # written between two waits for the disk: what a killed import does again, at most
Piece = tuple[Box, np.ndarray]  # a part of an array, and its contents
Progress = Callable[[str, int, int], None]  # name of the array, bytes done, bytes of all


def nothing() -> None:
    """What is sound already has nothing to check."""


@dataclass(frozen=True)
class Incoming:
    """An array to be. ``pieces`` gives its contents as disjoint parts, views of the mapped source where they can be;
    ``check`` reads what they are made from and raises ConversionError where it contradicts itself."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    pieces: Callable[[], list[Piece]]
    check: Callable[[], None] = nothing

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * numpy_dtype(self.dtype).itemsize

    @property
    def cut(self) -> bool:
        """Whether it is cut into objects of its own."""
        return bool(grid_of(self.axes, self.shape, self.dtype))

    def value(self) -> np.ndarray:
        """All of it, in memory of its own."""
        out = np.empty(self.shape, numpy_dtype(self.dtype))
        for box, data in self.pieces():
            copy_rows(out[(*within(box, whole(self.shape)), ...)], data)
        return out

    def make(self) -> HostArray:
        """The array with its contents; what is packed with others is copied, so that the source can be let go."""
        pieces = self.pieces() if self.cut else [(whole(self.shape), self.value())]
        return HostArray(self.name, self.axes, self.shape, self.dtype, pieces)

    def described(self) -> HostArray:
        """The same without contents: what its description is made from."""
        return HostArray(self.name, self.axes, self.shape, self.dtype, [])


def write_state(
    directory: str,
    arrays: Sequence[Incoming],
    document: dict[str, Any],
    source: Any,
    progress: Progress | None = None,
    forget: Callable[[], None] = nothing,
) -> Written:
    """Write all but the manifest into ``directory``; what an earlier try finished is kept where it was of the same
    ``source`` (any JSON that names it as it is). ``forget`` is called after each array: nothing of it is needed any
    more. Raises CheckpointFull where there is no room."""
    store = Directory(directory)
    done = _resume(directory, source)
    total = sum(array.size for array in arrays)
    missing = sum(array.size for array in arrays if array.name not in done)
    free = shutil.disk_usage(directory).free
    if missing + (1 << 20) > free:
        raise CheckpointFull(
            f"{directory}: no room for the import: {missing} bytes needed, {free} free; free some there"
        )
    objects = [ObjectEntry(**entry) for name in done for entry in done[name]]
    ready = sum(array.size for array in arrays if array.name in done)
    ready_arrays: list[HostArray] = []
    unsynced: list[dict[str, Any]] = []
    waiting = 0

    def settle() -> None:
        store.sync()
        for line in unsynced:
            _note(directory, line)
        unsynced.clear()

    ordered = sorted(arrays, key=lambda array: array.name)
    checks = [array.check for array in ordered if array.name not in done]
    reader = ThreadPoolExecutor(1, thread_name_prefix="import")
    try:
        checked = _ahead(reader, checks)
        for array in ordered:
            if array.name in done:
                ready_arrays.append(array.described())
                continue
            checked.result()
            checked = _ahead(reader, checks)
            made = array.make()
            if not array.cut:
                ready_arrays.append(made)
            else:
                written = write_cells(store, [made])
                unsynced.append({"array": array.name, "objects": [dataclasses.asdict(entry) for entry in written]})
                waiting += array.size
                if waiting >= SYNC_BYTES:
                    settle()
                    waiting = 0
                objects += written
                ready_arrays.append(array.described())
            del made
            forget()
            ready += array.size
            if progress is not None:
                progress(array.name, ready, total)
        objects += write_rest(store, ready_arrays, document)
        store.sync()
    finally:
        reader.shutdown(cancel_futures=True)
        store.close()
    os.unlink(os.path.join(directory, RECORD))
    return written_of(describe_arrays(ready_arrays), objects, document)


def _ahead(reader: ThreadPoolExecutor, checks: list[Callable[[], None]]) -> Future[None]:
    """The first of ``checks`` under way; it is taken off them."""
    return reader.submit(checks.pop(0) if checks else nothing)


def _resume(directory: str, source: Any) -> dict[str, list[dict[str, Any]]]:
    """The objects of the arrays that are whole already, by array; an empty directory where there are none."""
    first = json.loads(canonical_json({"source": source}))
    path = os.path.join(directory, RECORD)
    done: dict[str, list[dict[str, Any]]] = {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except (FileNotFoundError, ValueError):
        lines = []
    if lines and lines[0] == first:
        for line in lines[1:]:
            sizes = [(os.path.join(directory, entry["path"]), entry["size"]) for entry in line["objects"]]
            if all(os.path.exists(path) and os.path.getsize(path) == size for path, size in sizes):
                done[line["array"]] = line["objects"]
        _remove_others(directory, {entry["path"] for entries in done.values() for entry in entries} | {RECORD})
        return done
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    _note(directory, first)
    return done


def _remove_others(directory: str, kept: set[str]) -> None:
    """What was begun and not finished."""
    for parent, _, files in os.walk(directory):
        for name in files:
            path = os.path.join(parent, name)
            if os.path.relpath(path, directory) not in kept:
                os.unlink(path)


def _note(directory: str, line: Any) -> None:
    with open(os.path.join(directory, RECORD), "ab") as file:
        file.write(canonical_json(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())
