"""Verify a checkpoint where it lies, and show what is in it. Needs no jax."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from midstream_engine.checkpoint.errors import CheckpointCorrupt, CheckpointError
from midstream_engine.checkpoint.format import zarr
from midstream_engine.checkpoint.format.chunk_grid import chunk_shape
from midstream_engine.checkpoint.format.dtypes import numpy_dtype
from midstream_engine.checkpoint.format.objects import Discard, bytes_of, read_object, write_chunk, write_object
from midstream_engine.checkpoint.format.packed_arrays import pack, unpack
from midstream_engine.checkpoint.loading.completeness import check_layout
from midstream_engine.checkpoint.loading.list_checkpoints import check_train, read_manifest
from midstream_engine.checkpoint.saving.bounded_pool import Task, run_bounded
from midstream_engine.checkpoint.saving.spread_objects import not_here
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.records import MANIFEST, PACKED, TRAIN, ArrayEntry, Manifest, root_digest


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a decoded array holds."""

    norm: float  # square root of the sum of squares, in float64
    not_finite: int  # elements that are NaN or infinite


@dataclasses.dataclass(frozen=True)
class Report:
    """The outcome. A checkpoint is sound where ``flaws`` is empty."""

    manifest: Manifest
    root_digest: str | None  # recomputed; None where an object could not be read, or lies elsewhere
    flaws: list[str]  # one line an object or array, sorted
    unlisted: list[str]  # files that lie in the directory without belonging to the checkpoint
    contents: dict[str, Contents] | None  # by array name, where ``deep``
    elsewhere: dict[str, int] = dataclasses.field(default_factory=dict)  # objects that other hosts hold, by host

    @property
    def sound(self) -> bool:
        return not self.flaws


def verify_checkpoint(directory: str, *, deep: bool = False) -> Report:
    """Read every object once and check its size, SHA-256 and crc32c, then the root digest that they make.

    ``deep`` also decodes every array: that ``zarr.json`` and the packed file describe what the manifest does, that each
    cell's own crc32c belongs to its data; encodes the decoded arrays anew and compares the root digest that this makes;
    and measures norms. All flaws are reported, not the first alone. Raises CheckpointCorrupt where there is no manifest
    to check against, or it contradicts itself.
    """
    manifest = read_manifest(directory)
    check_layout(directory, manifest)
    store = open_store(directory)
    arrays = {entry.name: entry for entry in manifest.array_entries}
    cells = {path: entry for entry in arrays.values() if entry.grid for path in entry.objects}
    sums = {name: _Sums() for name in arrays}
    hashes: dict[str, str] = {}
    anew: dict[str, str] = {}  # of the objects that the decoded arrays make
    flaws: list[str] = []
    train: dict[str, object] = {}
    lock = threading.Lock()

    def check(path: str) -> None:
        owner = cells.get(path)
        is_cell = owner is not None and path != zarr.metadata_path(owner.name)
        data, sha256 = read_object(store, objects[path], cell=is_cell)
        with lock:
            hashes[path] = sha256
        if path == TRAIN:
            train.update(check_train(_json(data, path), f"object {TRAIN}"))
        small = dict(_unpacked(data, [entry for entry in arrays.values() if not entry.grid])) if path == PACKED else {}
        if not deep:
            return
        if path == PACKED:
            for name, array in small.items():
                sums[name].add(array)
            anew[path] = write_object(Discard(), path, memoryview(pack(small))).sha256
        elif owner is not None and is_cell:
            cell = np.frombuffer(data[:-4], numpy_dtype(owner.dtype))
            sums[owner.name].add(cell)
            anew[path] = write_chunk(Discard(), path, [bytes_of(cell)]).sha256
        elif owner is not None:
            if flaw := zarr.disagreement(bytes(data), owner):
                raise CheckpointCorrupt(f"object {path}: {flaw}")
            text = zarr.metadata(owner.axes, owner.shape, owner.dtype, owner.grid)
            anew[path] = write_object(Discard(), path, memoryview(text)).sha256

    def task(path: str) -> None:
        try:
            check(path)
        except CheckpointError as error:
            with lock:
                flaws.append(str(error).removeprefix(f"{directory}: "))

    objects = {entry.path: entry for entry in manifest.object_entries}
    away = not_here(store, manifest)
    here = [entry for path, entry in objects.items() if path not in away]
    tasks: list[Task] = [(entry.size, lambda path=entry.path: task(path)) for entry in here]
    run_bounded(tasks)

    digest = None
    state = train.get("state")
    if len(hashes) == len(objects) and isinstance(state, dict):
        digest = root_digest(manifest.array_entries, hashes, state)
        if digest != manifest.root_digest:
            flaws.append(f"root digest {digest} of the bytes differs from the manifest's {manifest.root_digest}")
        if deep and not flaws and (made := root_digest(manifest.array_entries, anew, state)) != manifest.root_digest:
            odd = next(path for path in sorted(anew) if anew[path] != hashes[path])
            flaws.append(f"object {odd}: its arrays are encoded otherwise than they are here (root digest {made})")
    return Report(
        manifest,
        digest,
        sorted(flaws),
        sorted(set(store.names()) - objects.keys() - {MANIFEST}),
        {name: total.contents() for name, total in sums.items()} if deep else None,
        dict(Counter(away.values())),
    )


def _json(data: memoryview, path: str) -> object:
    try:
        return json.loads(bytes(data))
    except ValueError as error:
        raise CheckpointCorrupt(f"object {path}: not JSON ({error})") from error


def _unpacked(data: memoryview, entries: list[ArrayEntry]) -> Iterator[tuple[str, np.ndarray]]:
    try:
        arrays = unpack(data)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointCorrupt(f"object {PACKED}: {error}") from error
    for entry in entries:
        array = arrays.get(entry.name)
        if array is None or list(array.shape) != entry.shape or array.dtype != numpy_dtype(entry.dtype):
            raise CheckpointCorrupt(f"object {PACKED}: {entry.name} is not in it as the manifest says")
        if entry.sha256 and entry.sha256 != hashlib.sha256(bytes_of(array)).hexdigest():
            raise CheckpointCorrupt(f"object {PACKED}: {entry.name} has another SHA-256 than the manifest says")
        yield entry.name, array


class _Sums:
    """Sums over the elements of one array, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._squares: list[float] = []
        self._not_finite = 0

    def add(self, part: np.ndarray) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            values = part.astype(np.float64).reshape(-1)
            finite = np.isfinite(values)
            squares = float(np.dot(values[finite], values[finite]))
        with self._lock:
            self._squares.append(squares)
            self._not_finite += values.size - int(finite.sum())

    def contents(self) -> Contents:
        # fsum does not depend on the order in which the threads were done.
        return Contents(math.sqrt(math.fsum(self._squares)), self._not_finite)


def lines(report: Report) -> Iterator[dict[str, Any]]:
    """The outcome for programs: one object an array, and at the end the verdict."""
    manifest = report.manifest
    for entry in manifest.array_entries:
        value: dict[str, Any] = {"event": "array", "name": entry.name, "axes": entry.axes, "shape": entry.shape}
        value |= {"dtype": entry.dtype, "grid": entry.grid}
        if report.contents is not None:
            contents = report.contents[entry.name]
            value |= {"norm": contents.norm, "not_finite": contents.not_finite}
        yield value
    problems = []
    for flaw in report.flaws:
        found = re.fullmatch(r"object (\S+): (.*)", flaw, re.DOTALL)
        problems.append([found[1], found[2]] if found else [MANIFEST, flaw])
    yield {
        "event": "verified",
        "objects": len(manifest.objects),
        "bytes": manifest.size,
        "recorded": manifest.root_digest,
        "recomputed": report.root_digest,
        "problems": problems,
        "extra": report.unlisted,
    }


def describe(report: Report) -> str:
    """The arrays as a tree: name, axes with lengths, dtype, bytes, objects; norms where they were measured."""
    manifest = report.manifest
    lines = [
        f"{manifest.name} of run {manifest.run_id}, epoch {manifest.epoch}",
        f"{len(manifest.arrays)} arrays, {len(manifest.objects)} objects, {manifest.size:,} bytes",
    ]
    rows: list[tuple[str, list[str]]] = []
    above: list[str] = []
    for entry in manifest.array_entries:
        *folders, leaf = entry.name.split("/")
        common = 0
        while common < min(len(folders), len(above)) and folders[common] == above[common]:
            common += 1
        rows += [("  " * depth + folders[depth] + "/", []) for depth in range(common, len(folders))]
        above = folders
        rows.append(("  " * len(folders) + leaf, _columns(entry, report)))
    width = max((len(label) for label, _ in rows), default=0)
    for label, columns in rows:
        lines.append("  ".join([label.ljust(width), *columns]).rstrip())
    return "\n".join(lines)


def _columns(entry: ArrayEntry, report: Report) -> list[str]:
    lengths = ", ".join(f"{axis}={length}" for axis, length in zip(entry.axes, entry.shape, strict=True))
    size = math.prod(entry.shape) * numpy_dtype(entry.dtype).itemsize
    if entry.grid:
        cells = len(entry.objects) - 1
        place = (
            f"{cells} cells of {math.prod(chunk_shape(entry.shape, entry.grid)) * numpy_dtype(entry.dtype).itemsize:,}"
        )
    else:
        place = "packed"
    columns = [f"[{lengths}]", entry.dtype, f"{size:,} bytes", place]
    if report.contents is not None:
        contents = report.contents[entry.name]
        if "float" in entry.dtype:
            columns.append(f"norm {contents.norm:.6g}")
        if contents.not_finite:
            columns.append(f"{contents.not_finite} NOT FINITE")
    return columns
