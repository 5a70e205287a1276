"""Check of a checkpoint's arrays with the standard library alone, on any host.

The check is slow. Beyond the hashes it checks that ``zarr.json`` and the packed file describe the manifest's arrays,
that each chunk's crc32c is right, and that the arrays, encoded again, have the manifest's root digest.
"""

from __future__ import annotations

import array
import hashlib
import math
import posixpath
import struct
import sys
from typing import Any, Dict, List, Tuple, cast

from midstream_core import records
from midstream_core.crc32c import crc32c
from midstream_core.safetensors_header import make_header, read_header
from midstream_core.zarr_metadata import disagreement
from midstream_host.copy_items import CopyObject
from midstream_host.object_files import emit
from midstream_host.verify import tree
from midstream_host.verify.objects import checked

_CODES = {
    "bool": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip


def examine(directory: str) -> int:
    """Check a checkpoint, print lines of `array_check`, and return the exit status."""
    try:
        value = tree.manifest_value(directory, records.MANIFEST)
        manifest = records.Manifest.from_json(value, directory)
        extra = sorted(set(tree.files_below(directory)) - {entry.path for entry in manifest.object_entries})
    except records.RecordError as error:
        emit("problem", kind="manifest", message=str(error))
        return 1
    problems: List[List[str]] = []
    encoded: Dict[str, str] = {}  # path -> SHA-256 of the arrays, encoded again
    for entry, wrong in checked(directory, cast("List[CopyObject]", manifest.objects)):
        if wrong is not None:
            problems.append([entry["path"], wrong])
    broken = {path for path, _ in problems}
    packed: Dict[str, memoryview] = {}
    small: Dict[str, bytes] = {}
    if any(not entry.grid for entry in manifest.array_entries) and records.PACKED not in broken:
        packed = _unpack(directory, manifest, problems)
    for entry in manifest.array_entries:
        squares, not_finite = 0.0, 0
        for path in entry.objects:
            if path in broken or (not entry.grid and entry.name not in packed):
                continue
            if not entry.grid:
                data = bytes(packed[entry.name])
                small[entry.name] = data
            else:
                with open(posixpath.join(directory, path), "rb") as file:
                    data = file.read()
                if path.endswith("/zarr.json"):
                    flaw = disagreement(data, entry)
                    if flaw:
                        problems.append([path, flaw])
                    encoded[path] = hashlib.sha256(data).hexdigest()
                    continue
                data, check = data[:-4], data[-4:]
                if crc32c(data) != int.from_bytes(check, "little"):
                    problems.append([path, "the crc32c at its end is not that of its data"])
                encoded[path] = hashlib.sha256(data + crc32c(data).to_bytes(4, "little")).hexdigest()
            measured = measure(data, entry.dtype)
            squares, not_finite = squares + measured[0], not_finite + measured[1]
        emit("array", by="the standard library", name=entry.name, norm=math.sqrt(squares), not_finite=not_finite)
    if small:
        encoded[records.PACKED] = hashlib.sha256(_pack(small, manifest)).hexdigest()
    digest = None
    if not problems:
        state = records.checkpoint_state(directory)
        digest = records.root_digest(manifest.array_entries, encoded, state)
        if digest != manifest.root_digest:
            problems.append([records.MANIFEST, "root digest is {}, it says {}".format(digest, manifest.root_digest)])
    emit(
        "verified", by="the standard library", objects=len(manifest.objects), bytes=manifest.size,
        recorded=manifest.root_digest, recomputed=digest, problems=problems,
        extra=[path for path in extra if path != records.MANIFEST],
    )  # fmt: skip
    return 0


def measure(data: bytes, dtype: str) -> Tuple[float, int]:
    """Return the sum of squares of the finite elements and the number of others."""
    values = elements(data, dtype)
    total = math.fsum(value * value for value in values if -math.inf < value < math.inf)
    return total, sum(1 for value in values if not -math.inf < value < math.inf)


def elements(data: bytes, dtype: str) -> Any:
    """The elements as Python numbers, in order."""
    if dtype == "float16":
        return [value for (value,) in struct.iter_unpack("<e", data)]
    if dtype == "bfloat16":  # the upper half of a float32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data, dtype = bytes(wide), "float32"
    values: "array.array[Any]" = array.array(_CODES[dtype])
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _unpack(directory: str, manifest: records.Manifest, problems: List[List[str]]) -> Dict[str, memoryview]:
    """Return the bytes of the packed arrays by name.

    Append to ``problems`` what differs from the manifest.
    """
    with open(posixpath.join(directory, records.PACKED), "rb") as file:
        raw = memoryview(file.read())
    try:
        header = read_header(raw)
    except ValueError as error:
        problems.append([records.PACKED, "its header is malformed ({})".format(error)])
        return {}
    arrays: Dict[str, memoryview] = {}
    for entry in manifest.array_entries:
        if entry.grid:
            continue
        described = header.get(entry.name)
        if described is None or (described.dtype, described.shape) != (entry.dtype, entry.shape):
            problems.append([records.PACKED, "{} is not in it as the manifest says".format(entry.name)])
            continue
        arrays[entry.name] = raw[described.start : described.stop]
    return arrays


def _pack(arrays: Dict[str, bytes], manifest: records.Manifest) -> bytes:
    """Return ``small.safetensors`` with these arrays."""
    entries = {entry.name: entry for entry in manifest.array_entries}
    header = make_header((name, entries[name].dtype, entries[name].shape) for name in sorted(arrays))
    return b"".join([header] + [arrays[name] for name in sorted(arrays)])
