"""Distributed checkpoints of torch on the disk, read part by part without torch."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import ml_dtypes
import numpy as np

from midstream_core import dcp_metadata, records
from midstream_core.dcp_metadata import DcpState, Place
from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_engine.interop.archive import TorchFile
from midstream_engine.interop.calls import Tensor
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchValue
from midstream_engine.interop.torch_dcp.names import present_name

METADATA = ".metadata"
DTYPES: Mapping[str, np.dtype] = {
    "float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16),
    "float64": np.dtype(np.float64), "int64": np.dtype(np.int64), "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8), "bool": np.dtype(np.bool_),
}  # fmt: skip
_Entry = TypeVar("_Entry")
_STEP = re.compile(r"\D*(\d{1,12})")


class DcpCheckpoint:
    """A checkpoint that is open for reading. Names are those of `present_name`."""

    def __init__(self, directory: str) -> None:
        """Open the checkpoint and check its files' sizes.

        Raises:
            ConversionError: ``.metadata`` is damaged, or a file is missing or cut off.
        """
        self.directory = directory
        path = os.path.join(directory, METADATA)
        try:
            state = dcp_metadata.state_of(records.read_bytes(path, dcp_metadata.METADATA_LIMIT))
        except FormatError as error:
            raise ConversionError(f"{path}: {error}") from None
        self.tensors = self._renamed(state.tensors)
        self._values = self._renamed(state.values)
        self._check_files(state)

    @property
    def names(self) -> list[str]:
        """All names of the state."""
        return sorted({*self.tensors, *self._values})

    def others(self) -> list[str]:
        """Return the names of data files here that ``.metadata`` does not name."""
        named = {stored.place.file for tensor in self.tensors.values() for stored in tensor.parts}
        named |= {place.file for place in self._values.values()}
        return sorted(name for name in os.listdir(self.directory) if name.endswith(".distcp") and name not in named)

    def value(self, name: str) -> TorchValue:
        """Return a plain value, or the number of a tensor that has one; None without it.

        Raises:
            ConversionError: It is damaged.
        """
        if name in self.tensors:
            return self.read(name).item() if self.tensors[name].shape in ((), (1,)) else None
        place = self._values.get(name)
        return None if place is None else self._part(name, place)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor. Its parts' CRCs are checked.

        Raises:
            ConversionError: A part is damaged, or has another type or shape than ``.metadata`` says.
        """
        tensor = self.tensors[name]
        if tensor.dtype not in DTYPES:
            raise ConversionError(f"{self.directory}: {name} has the type {tensor.dtype}, which is not read")
        complete: np.ndarray | None = None
        for stored in tensor.parts:
            read = self._part(name, stored.place)
            if not isinstance(read, Tensor) or read.shape != stored.shape or read.dtype != DTYPES[tensor.dtype]:
                raise ConversionError(f"{self._at(stored.place)}: not the part of {name} that {METADATA} describes")
            with _named(name):
                values = read.read()
            if stored.shape == tensor.shape:
                return values
            complete = np.empty(tensor.shape, read.dtype) if complete is None else complete
            cut = tuple(slice(begin, begin + size) for begin, size in zip(stored.begins, stored.shape, strict=True))
            complete[cut] = values
        return np.empty(tensor.shape, DTYPES[tensor.dtype]) if complete is None else complete

    @functools.cached_property
    def stamp(self) -> list[JsonValue]:
        """Names and times that identify this state of the files."""
        return [[name, os.stat(os.path.join(self.directory, name)).st_mtime_ns] for name in [METADATA, *self._files]]

    def _part(self, name: str, place: Place) -> TorchValue:
        with _named(name):
            path = os.path.join(self.directory, place.file)
            return TorchFile(path, begin=place.offset, size=place.length).value

    def _check_files(self, state: DcpState) -> None:
        for file, end in sorted(state.ends.items()):
            path = os.path.join(self.directory, file)
            if not os.path.isfile(path):
                raise ConversionError(f"{path}: missing, and {METADATA} names it")
            size = os.path.getsize(path)
            if size < end:
                raise ConversionError(f"{path}: has {size} bytes, and {METADATA} names {end}: it is not complete")
        self._files = sorted(state.ends)

    def _renamed(self, entries: Mapping[str, _Entry]) -> dict[str, _Entry]:
        renamed = {present_name(name): entry for name, entry in entries.items()}
        if len(renamed) < len(entries):
            raise ConversionError(f"{self.directory}: has the names of two releases of torchtitan")
        return renamed

    def _at(self, place: Place) -> str:
        return f"{os.path.join(self.directory, place.file)} at {place.offset}"


def is_checkpoint(path: str) -> bool:
    """Return whether ``path`` is a checkpoint, or a folder of them."""
    return os.path.isfile(os.path.join(path, METADATA)) or bool(_steps(path))


def find(path: str) -> str:
    """Return the checkpoint at ``path``, or the one of the highest step there.

    Raises:
        ConversionError: There is none.
    """
    if os.path.isfile(os.path.join(path, METADATA)):
        return path
    steps = _steps(path)
    if not steps:
        raise ConversionError(
            f"{path}: no {METADATA} there or in a folder there: no distributed checkpoint of torch was finished (a "
            "save with use_collectives=False has one for each process, and is not read)"
        )
    return os.path.join(path, steps[max(steps)])


def _steps(path: str) -> dict[int, str]:
    """Return the folders with a checkpoint by the number in their name."""
    return {
        int(number[1]): name
        for name in (os.listdir(path) if os.path.isdir(path) else [])
        if (number := _STEP.fullmatch(name)) and os.path.isfile(os.path.join(path, name, METADATA))
    }


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Context manager: an error begins with the name of what was read."""
    try:
        yield
    except ConversionError as error:
        raise ConversionError(f"{name}: {error}") from None
