"""Manifest of a checkpoint: its arrays, objects and the hosts that have them."""

from __future__ import annotations

import dataclasses
import functools
import posixpath
from typing import ClassVar, Dict, List, Sequence

from midstream_core import json_shapes
from midstream_core.json_types import JsonValue, RecordFields, object_or_empty
from midstream_core.records.errors import DamagedRecordError, RecordError
from midstream_core.records.field_forms import DTYPE, RUN_ID
from midstream_core.records.files import MAX_FILE, read_json
from midstream_core.records.record import JsonRecord
from midstream_core.records.run_paths import checkpoint_name

FORMAT = "midstream-checkpoint"
FORMAT_VERSION = 2

MANIFEST = "manifest.json"
TRAIN = "train.json"
PACKED = "small.safetensors"


@dataclasses.dataclass(frozen=True)
class ObjectEntry(JsonRecord):
    """File of a checkpoint or of a token cache.

    ``path`` is relative to the manifest.
    """

    path: str
    size: int  # bytes
    sha256: str  # hex
    crc32c: str = ""  # base64 of the big-endian 4 bytes, as buckets report it
    host: str = ""  # in a spread checkpoint, the host that has it, a name of ``Manifest.hosts``; empty: all have it


@dataclasses.dataclass(frozen=True)
class SpreadHost(JsonRecord):
    """Host, or several with one file system, with a share of a spread checkpoint."""

    host: str  # its name: the launcher's ($MIDSTREAM_HOST), else the machine's; unique within the checkpoint
    processes: List[int]  # numbers of the attempt's processes that wrote there
    directory: str  # the checkpoint's directory there, absolute


@dataclasses.dataclass(frozen=True)
class ArrayEntry(JsonRecord):
    """Array of a checkpoint.

    ``grid`` is the number of chunks along each axis; ``objects`` are its files in the order of paths.

    An array in ``small.safetensors`` has that one file and an empty grid.
    """

    name: str
    axes: List[str]
    shape: List[int]
    dtype: str = dataclasses.field(metadata={"form": DTYPE})
    grid: List[int]
    objects: List[str]
    sha256: str = ""  # of an array's elements in ``small.safetensors``; empty for others, whose objects have hashes


@dataclasses.dataclass(frozen=True)
class Manifest(JsonRecord):
    """``manifest.json``: written last; a directory without it is not a checkpoint.

    A *spread* checkpoint was saved by hosts without a shared file system. Each has a copy of the manifest, which
    differs in ``host`` alone, and of every object whose own ``host`` is empty or that host; the other objects have to
    be fetched. The root digest does not depend on where an object is stored. A program that brought all objects to
    one directory writes `collected` there.
    """

    LIMIT: ClassVar[int] = MAX_FILE

    format: str
    version: int
    run_id: str = dataclasses.field(metadata={"form": RUN_ID})
    step: int
    attempt: int
    epoch: int
    created: float
    root_digest: str
    arrays: List[RecordFields] = dataclasses.field(metadata={"items": ArrayEntry})
    objects: List[RecordFields] = dataclasses.field(metadata={"items": ObjectEntry})
    hosts: List[RecordFields] = dataclasses.field(
        default_factory=lambda: [], metadata={"items": SpreadHost}
    )  # empty: the checkpoint is not spread
    host: str = ""  # the one of ``hosts`` that has this copy
    start: int = 0  # number of the start that committed it, within the epoch; 0: of a version without start numbers
    numbered: bool = False  # its name has the start's number, as in a bucket

    @classmethod
    def from_json(cls, value: JsonValue, where: str = "") -> Manifest:
        """Check and decode a manifest.

        Raises RecordError for another format or version, and for unsafe paths or shapes.
        """
        _check_version(value, where or MANIFEST)
        manifest = super().from_json(value, where)
        if manifest.format != FORMAT:
            raise RecordError(f"{where or MANIFEST}: format {manifest.format!r} is not {FORMAT!r}")
        for entry in manifest.object_entries:
            if not safe_relative(entry.path):
                raise RecordError(f"{where or MANIFEST}: object path {entry.path!r} leaves the directory")
        for array in manifest.array_entries:
            if len(array.axes) != len(array.shape) or not _is_countable(array.shape):
                raise RecordError(f"{where or MANIFEST}: array {array.name!r} of axes {array.axes} has another shape")
        return manifest

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return checkpoint_name(self.step, self.attempt, self.start if self.numbered else 0)

    @functools.cached_property
    def object_entries(self) -> List[ObjectEntry]:
        """The decoded objects."""
        return [ObjectEntry.from_checked(entry) for entry in self.objects]

    @functools.cached_property
    def array_entries(self) -> List[ArrayEntry]:
        """The decoded arrays."""
        return [ArrayEntry.from_checked(entry) for entry in self.arrays]

    @property
    def size(self) -> int:
        """Bytes of all objects, without the manifest itself."""
        return sum(entry.size for entry in self.object_entries)

    @property
    def spread_hosts(self) -> List[SpreadHost]:
        """The decoded hosts of a spread checkpoint."""
        return [SpreadHost.from_checked(entry) for entry in self.hosts]

    @property
    def elsewhere(self) -> Dict[str, List[ObjectEntry]]:
        """Objects that only other hosts have, by host.

        The directory of this manifest may lack these objects.
        """
        missing: Dict[str, List[ObjectEntry]] = {}
        for entry in self.object_entries:
            if self.hosts and entry.host not in ("", self.host):
                missing.setdefault(entry.host, []).append(entry)
        return missing

    def collected(self) -> Manifest:
        """Return the manifest of the same checkpoint with all objects in one directory.

        The root digest is the same.
        """
        objects = [{**entry, "host": ""} for entry in self.objects]
        return dataclasses.replace(self, objects=objects, hosts=[], host="")


def _check_version(value: JsonValue, where: str) -> None:
    """Raise RecordError for another version, whose other fields may differ."""
    fields = object_or_empty(value)
    version = fields.get("version")
    if fields.get("format") == FORMAT and type(version) is int and version != FORMAT_VERSION:
        age = "newer" if version > FORMAT_VERSION else "older"
        raise RecordError(f"{where}: version {version} is {age} than this midstream reads ({FORMAT_VERSION})")


def _is_countable(shape: Sequence[int]) -> bool:
    """Report whether the number of elements fits 64 bits."""
    total = 1
    for length in shape:
        total *= length
        if total > json_shapes.MAX_INTEGER:
            return False
    return True


def checkpoint_state(directory: str) -> Dict[str, JsonValue]:
    """Return the state in a checkpoint's ``train.json``.

    Raises FileNotFoundError where the file is absent, DamagedRecordError where it cannot be read or has no state.
    """
    path = posixpath.join(directory, TRAIN)
    state = object_or_empty(read_json(path)).get("state")
    if not isinstance(state, dict):
        raise DamagedRecordError(f"{path}: it has no state")
    return state


def safe_relative(path: str) -> bool:
    """Return whether ``path`` is canonical, relative, and stays below its directory."""
    return (
        bool(path)
        and not path.startswith("/")
        and path == posixpath.normpath(path)
        and path.split("/")[0] != ".."
        and not any(character < " " or character == "\x7f" for character in path)
    )
