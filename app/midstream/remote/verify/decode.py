"""Decode a checkpoint's arrays with the standard library alone: slow, and to be had on every host.

What is checked beyond the bytes: ``zarr.json`` and the packed file describe what the manifest does, each cell's crc32c
belongs to its elements, and the arrays, encoded anew, make the manifest's root digest.
"""

from __future__ import annotations

import array
import hashlib
import json
import math
import posixpath
import struct
import sys
from typing import Any, Dict, List, Tuple

from midstream.remote.verify import tree
from midstream_engine import records

SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
_CODES = {
    "bool": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint8": "B", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float32": "f", "float64": "d",
}  # fmt: skip
_SAFETENSORS = {
    "bool": "BOOL", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
}  # fmt: skip


def examine(directory: str) -> int:
    """Lines as :mod:`midstream.remote.verify.array_check` has them."""
    try:
        value = tree.manifest_value(directory, records.MANIFEST)
        manifest = records.Manifest.from_json(value, directory)
        extra = sorted(set(tree._files(directory)) - {entry.path for entry in manifest.object_entries})
    except records.RecordError as error:
        tree.emit("problem", kind="manifest", message=str(error))
        return 1
    problems = []
    anew = {}  # path -> SHA-256 of what the decoded arrays make
    for entry, wrong in tree.checked(directory, manifest.objects):
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
                    flaw = _zarr_flaw(data, entry)
                    if flaw:
                        problems.append([path, flaw])
                    anew[path] = hashlib.sha256(data).hexdigest()
                    continue
                data, check = data[:-4], data[-4:]
                if crc32c(data) != int.from_bytes(check, "little"):
                    problems.append([path, "the crc32c at its end does not belong to its data"])
                anew[path] = hashlib.sha256(data + crc32c(data).to_bytes(4, "little")).hexdigest()
            found = measure(data, entry.dtype)
            squares, not_finite = squares + found[0], not_finite + found[1]
        tree.emit("array", by="the standard library", name=entry.name, norm=math.sqrt(squares), not_finite=not_finite)
    if small:
        anew[records.PACKED] = hashlib.sha256(_pack(small, manifest)).hexdigest()
    digest = None
    if not problems:
        train = records.read_json(posixpath.join(directory, records.TRAIN))
        digest = records.root_digest(manifest.array_entries, anew, train["state"])
        if digest != manifest.root_digest:
            problems.append([records.MANIFEST, "root digest is {}, it says {}".format(digest, manifest.root_digest)])
    tree.emit(
        "verified", by="the standard library", objects=len(manifest.objects), bytes=manifest.size,
        recorded=manifest.root_digest, recomputed=digest, problems=problems,
        extra=[path for path in extra if path != records.MANIFEST],
    )  # fmt: skip
    return 0


def measure(data: bytes, dtype: str) -> Tuple[float, int]:
    """Sum of squares of the finite elements, and how many are not finite."""
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
    values = array.array(_CODES[dtype])
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def crc32c(data: bytes) -> int:
    """CRC-32 with Castagnoli's polynomial, reflected."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _entry(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = [_entry(value) for value in range(256)]


def _unpack(directory: str, manifest: records.Manifest, problems: List[List[str]]) -> Dict[str, memoryview]:
    """The packed arrays' bytes by name; what does not fit the manifest goes into ``problems``."""
    with open(posixpath.join(directory, records.PACKED), "rb") as file:
        raw = memoryview(file.read())
    try:
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(bytes(raw[8:start]))
    except ValueError as error:
        problems.append([records.PACKED, "its header is malformed ({})".format(error)])
        return {}
    found = {}
    for entry in manifest.array_entries:
        if entry.grid:
            continue
        described = header.get(entry.name, {})
        wanted = {"dtype": _SAFETENSORS.get(entry.dtype), "shape": entry.shape}
        first, last = described.get("data_offsets", (0, -1))
        right = {key: described.get(key) for key in wanted} == wanted
        if not right or last - first != math.prod(entry.shape) * SIZES[entry.dtype] or start + last > len(raw):
            problems.append([records.PACKED, "{} is not in it as the manifest says".format(entry.name)])
            continue
        found[entry.name] = raw[start + first : start + last]
    return found


def _pack(arrays: Dict[str, bytes], manifest: records.Manifest) -> bytes:
    """``small.safetensors`` as the format has it."""
    header: Dict[str, Any] = {}
    end = 0
    entries = {entry.name: entry for entry in manifest.array_entries}
    for name in sorted(arrays):
        dtype, start = _SAFETENSORS[entries[name].dtype], end
        end += len(arrays[name])
        header[name] = {"dtype": dtype, "shape": entries[name].shape, "data_offsets": [start, end]}
    text = records.canonical_json(header)
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text] + [arrays[name] for name in sorted(arrays)])


def _zarr_flaw(data: bytes, entry: records.ArrayEntry) -> str:
    try:
        found = json.loads(data)
        cell = found["chunk_grid"]["configuration"]["chunk_shape"]
        said = [found["shape"], found["data_type"], found["dimension_names"], cell]
    except (ValueError, KeyError, TypeError) as error:
        return "not the description of an array ({!r})".format(error)
    wanted = [length // parts for length, parts in zip(entry.shape, entry.grid)]
    if said != [entry.shape, entry.dtype, entry.axes, wanted]:
        return "it describes another array than the manifest"
    return ""
