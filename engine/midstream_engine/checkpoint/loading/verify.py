"""Verify a stored checkpoint and describe its arrays. Needs no jax."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np

from midstream_core import zarr_metadata
from midstream_core.attempt.errors import CheckpointError
from midstream_core.json_types import JsonValue
from midstream_core.records import MANIFEST, PACKED, TRAIN, ArrayEntry, Manifest, ObjectEntry, root_digest
from midstream_engine.checkpoint import zarr
from midstream_engine.checkpoint.bounded_pool import Task, run_bounded
from midstream_engine.checkpoint.chunk_grid import chunk_shape
from midstream_engine.checkpoint.dtypes import numpy_dtype
from midstream_engine.checkpoint.errors import CheckpointCorruptError
from midstream_engine.checkpoint.host_buffers import bytes_of
from midstream_engine.checkpoint.loading.checkpoint_records import check_train, read_manifest
from midstream_engine.checkpoint.loading.completeness import check_layout
from midstream_engine.checkpoint.loading.spread_objects import missing_here
from midstream_engine.checkpoint.packed_arrays import pack, unpack_entries
from midstream_engine.checkpoint.stores import open_store
from midstream_engine.checkpoint.stores.hashed_objects import Discard, read_object, write_chunk, write_object
from midstream_engine.checkpoint.stores.object_store import ObjectStore
from midstream_engine.checkpoint.train_document import TrainDocument


@dataclasses.dataclass(frozen=True)
class ArrayMeasures:
    """Measures of a decoded array."""

    norm: float  # square root of the sum of squares, in float64
    not_finite: int  # elements that are NaN or infinite


@dataclasses.dataclass(frozen=True)
class Report:
    """Result of a verification."""

    manifest: Manifest
    root_digest: str | None  # recomputed; None if an object is unreadable or on another host
    flaws: list[str]  # one line per object or array, sorted
    unlisted: list[str]  # files in the directory that do not belong to the checkpoint
    contents: dict[str, ArrayMeasures] | None  # by array name, if ``deep``
    elsewhere: dict[str, int] = dataclasses.field(
        default_factory=dict[str, int]
    )  # number of objects on other hosts, by host

    @property
    def sound(self) -> bool:
        """Whether no flaw was found."""
        return not self.flaws


def verify_checkpoint(directory: str, *, deep: bool = False) -> Report:
    """Read every object once; check sizes, SHA-256, crc32c and the root digest.

    ``deep`` also decodes every array, measures norms, and checks that ``zarr.json`` and the packed file agree with the
    manifest, that each chunk's own crc32c matches its data, and that the decoded arrays, encoded again, make the same
    root digest. All flaws are reported.

    Raises:
        CheckpointCorruptError: There is no manifest to check against, or it contradicts itself.
    """
    manifest = read_manifest(directory)
    check_layout(directory, manifest)
    store = open_store(directory)
    run = _Verification(directory, store, manifest, deep)
    remote = missing_here(store, manifest)
    local = [entry for entry in manifest.object_entries if entry.path not in remote]
    tasks: list[Task] = [(entry.size, partial(run.check_object, entry)) for entry in local]
    run_bounded(tasks)
    digest = run.root_digest()
    return Report(
        manifest,
        digest,
        sorted(run.flaws),
        sorted(set(store.names()) - {entry.path for entry in manifest.object_entries} - {MANIFEST}),
        {name: total.contents() for name, total in run.sums.items()} if deep else None,
        dict(Counter(remote.values())),
    )


class _Verification:
    """State of one verification, from any thread."""

    def __init__(self, directory: str, store: ObjectStore, manifest: Manifest, deep: bool) -> None:
        self._directory, self._store, self._manifest, self._deep = directory, store, manifest, deep
        self._packed = [entry for entry in manifest.array_entries if not entry.grid]
        self._chunked = {path: entry for entry in manifest.array_entries if entry.grid for path in entry.objects}
        self.sums = {entry.name: _Sums() for entry in manifest.array_entries}
        self.flaws: list[str] = []
        self._hashes: dict[str, str] = {}
        self._encoded: dict[str, str] = {}  # SHA-256 of the objects that the decoded arrays make
        self._train: TrainDocument | None = None
        self._lock = threading.Lock()

    def check_object(self, entry: ObjectEntry) -> None:
        """Read and check an object; record a flaw."""
        try:
            self._check(entry)
        except CheckpointError as error:
            with self._lock:
                self.flaws.append(str(error).removeprefix(f"{self._directory}: "))

    def _check(self, entry: ObjectEntry) -> None:
        path, array = entry.path, self._chunked.get(entry.path)
        is_chunk = array is not None and path != zarr.metadata_path(array.name)
        data, sha256 = read_object(self._store, entry, chunk=is_chunk)
        with self._lock:
            self._hashes[path] = sha256
        if path == TRAIN:
            self._train = check_train(_json(data, path), f"object {TRAIN}")
        elif path == PACKED:
            arrays = dict(_unpacked(data, self._packed))
            if self._deep:
                for name, values in arrays.items():
                    self.sums[name].add(values)
                self._encoded[path] = write_object(Discard(), path, memoryview(pack(arrays))).sha256
        elif array is not None and self._deep:
            self._decode(path, array, data, is_chunk)

    def _decode(self, path: str, array: ArrayEntry, data: memoryview, is_chunk: bool) -> None:
        if is_chunk:
            values = np.frombuffer(data[:-4], numpy_dtype(array.dtype))
            self.sums[array.name].add(values)
            self._encoded[path] = write_chunk(Discard(), path, [bytes_of(values)]).sha256
            return
        if flaw := zarr_metadata.disagreement(bytes(data), array):
            raise CheckpointCorruptError(f"object {path}: {flaw}")
        text = zarr_metadata.metadata(array.axes, array.shape, array.dtype, array.grid)
        self._encoded[path] = write_object(Discard(), path, memoryview(text)).sha256

    def root_digest(self) -> str | None:
        """Return the root digest of the objects read; None if an object is missing.

        Records a difference as a flaw.
        """
        recorded = self._manifest.root_digest
        if len(self._hashes) != len(self._manifest.objects) or self._train is None:
            return None
        state = self._train["state"]
        digest = root_digest(self._manifest.array_entries, self._hashes, state)
        if digest != recorded:
            self.flaws.append(f"root digest {digest} of the bytes differs from the manifest's {recorded}")
        if self._deep and not self.flaws:
            encoded = root_digest(self._manifest.array_entries, self._encoded, state)
            if encoded != recorded:
                path = next(path for path in sorted(self._encoded) if self._encoded[path] != self._hashes[path])
                self.flaws.append(f"object {path}: its arrays are not in the format's encoding (root digest {encoded})")
        return digest


def _json(data: memoryview, path: str) -> object:
    try:
        return json.loads(bytes(data))
    except ValueError as error:
        raise CheckpointCorruptError(f"object {path}: not JSON ({error})") from error


def _unpacked(data: memoryview, entries: list[ArrayEntry]) -> Iterator[tuple[str, np.ndarray]]:
    for entry, array in unpack_entries(f"object {PACKED}", data, entries):
        if entry.sha256 and entry.sha256 != hashlib.sha256(bytes_of(array)).hexdigest():
            raise CheckpointCorruptError(f"object {PACKED}: {entry.name} has another SHA-256 than in the manifest")
        yield entry.name, array


class _Sums:
    """Sums over the elements of one array. Thread-safe."""

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

    def contents(self) -> ArrayMeasures:
        # fsum does not depend on the order in which threads finish.
        return ArrayMeasures(math.sqrt(math.fsum(self._squares)), self._not_finite)


def lines(report: Report) -> Iterator[dict[str, JsonValue]]:
    """Yield the result for programs: one JSON object per array, then the verdict."""
    manifest = report.manifest
    for entry in manifest.array_entries:
        value: dict[str, JsonValue] = {"event": "array", "name": entry.name, "axes": entry.axes, "shape": entry.shape}
        value |= {"dtype": entry.dtype, "grid": entry.grid}
        if report.contents is not None:
            contents = report.contents[entry.name]
            value |= {"norm": contents.norm, "not_finite": contents.not_finite}
        yield value
    problems: list[list[str]] = []
    for flaw in report.flaws:
        match = re.fullmatch(r"object (\S+): (.*)", flaw, re.DOTALL)
        problems.append([match[1], match[2]] if match else [MANIFEST, flaw])
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
    """Return the arrays as a tree.

    Each has its name, axes with lengths, dtype, bytes and objects, and norms if they were measured.
    """
    manifest = report.manifest
    lines = [
        f"{manifest.name} of run {manifest.run_id}, ownership {manifest.epoch}",
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
        chunks = len(entry.objects) - 1
        chunk_size = math.prod(chunk_shape(entry.shape, entry.grid)) * numpy_dtype(entry.dtype).itemsize
        layout = f"{chunks} chunks of {chunk_size:,}"
    else:
        layout = "packed"
    columns = [f"[{lengths}]", entry.dtype, f"{size:,} bytes", layout]
    if report.contents is not None:
        contents = report.contents[entry.name]
        if "float" in entry.dtype:
            columns.append(f"norm {contents.norm:.6g}")
        if contents.not_finite:
            columns.append(f"{contents.not_finite} NOT FINITE")
    return columns
