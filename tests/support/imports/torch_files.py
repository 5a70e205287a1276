"""Write torch's zip archives without torch, valid and malformed ones."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "float32": "FloatStorage",
    "bfloat16": "BFloat16Storage",
    "float16": "HalfStorage",
    "int64": "LongStorage",
    "uint8": "ByteStorage",
}


class Global:
    """A value that is pickled as a name."""

    def __init__(self, name: str) -> None:
        self.name = name


class Made:
    """A value that is pickled as a call of a global."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments = name, arguments


_PlainPickler: Any = pickle._Pickler  # pyright: ignore[reportAttributeAccessIssue]


class _Pickler(_PlainPickler):
    """Pickles arrays as torch pickles its tensors, with protocol 2."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, 2)
        self.storages: list[np.ndarray] = []

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, np.ndarray):
            self.save(Global("torch._utils _rebuild_tensor_v2"))
            strides = tuple(step // obj.itemsize for step in np.empty(obj.shape, obj.dtype).strides)
            key = ("storage", Global(f"torch {KINDS[obj.dtype.name]}"), str(len(self.storages)), "cpu", obj.size)
            self.storages.append(np.ascontiguousarray(obj))
            self.write(b"(")
            super().save(key)
            self.write(b"Q")
            for item in (0, obj.shape, strides, False):
                super().save(item)
            self.write(b"ccollections\nOrderedDict\n)Rt" + b"R")
        elif isinstance(obj, Made):
            self.save(Global(obj.name))
            super().save(obj.arguments)
            self.write(b"R")
        elif isinstance(obj, Global):
            module, name = obj.name.split(" ")
            self.write(f"c{module}\n{name}\n".encode())
        else:
            super().save(obj, save_persistent_id)


def save(path: Path, value: Any) -> None:
    """Return ``value`` (plain values and arrays) as torch.save writes it."""
    import io

    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(value)
    write(path, buffer.getvalue(), {str(number): one.tobytes() for number, one in enumerate(pickler.storages)})


def write(path: Path, data: bytes, storages: dict[str, bytes] | None = None, **options: Any) -> None:
    """Return an archive of a pickle's bytes and its storages. ``options``: of zipfile."""
    with zipfile.ZipFile(path, "w", options.get("compression", zipfile.ZIP_STORED)) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", options.get("byteorder", "little"))
        archive.writestr("archive/version", "3\n")
        for name, content in (storages or {}).items():
            archive.writestr(f"archive/data/{name}", content)


def storage_pickle(kind: bytes = b"FloatStorage", name: str = "0", count: int = 4, tail: bytes = b"") -> bytes:
    """Return a pickle of one tensor [count] in storage ``name``."""
    text = name.encode()
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n" + kind + b"\nX"
        + struct.pack("<I", len(text)) + text + b"X\x03\x00\x00\x00cpuJ" + struct.pack("<i", count)
        + b"tQK\x00J" + struct.pack("<i", count) + b"\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR" + tail + b"."
    )  # fmt: skip
