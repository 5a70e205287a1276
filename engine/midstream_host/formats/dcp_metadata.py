"""The ``.metadata`` of a torch checkpoint: names of the state, bytes of each file."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, cast

from midstream_core import records, restricted_pickle
from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_core.restricted_pickle import Record
from midstream_host.formats.torch_archive import PlainValues, TorchArchive

METADATA_LIMIT = 32 << 20  # bytes
MIN_STORED = 1 << 16  # bytes of a stored number, with the archive around it, or less
_METADATA = ("torch.distributed.checkpoint.metadata", "Metadata")
_STORAGE = ("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_INDEX = ("torch.distributed.checkpoint.metadata", "MetadataIndex")


class Place(NamedTuple):
    """Bytes of a part of the state: file, first byte, number."""

    file: str
    offset: int
    length: int


class DcpMetadata(NamedTuple):
    """Contents of a checkpoint.

    ``ends``: by file, the bytes that it has at least; ``names``: those of the state; ``small``: by name, where a part
    of the state is that is small enough to be a number.
    """

    ends: Dict[str, int]
    names: List[str]
    small: Dict[str, Place]


def read(path: str) -> DcpMetadata:
    """Read a ``.metadata`` file.

    Raises:
        FormatError: The file is partial, or no ``.metadata``.
        OSError: The file cannot be read.
    """
    try:
        value = restricted_pickle.load(records.read_bytes(path, METADATA_LIMIT), PlainValues())
    except restricted_pickle.PickleError as error:
        raise FormatError("cannot be read: {}".format(error)) from None
    fields = _fields(value, _METADATA)
    places: JsonValue = fields.get("storage_data")
    names: JsonValue = fields.get("state_dict_metadata")
    if not isinstance(places, dict) or not isinstance(names, dict):
        raise FormatError("names no files")
    ends: Dict[str, int] = {}
    small: Dict[str, Place] = {}
    for index, place in cast("Dict[JsonValue, JsonValue]", places).items():
        stored = _fields(place, _STORAGE)
        file, offset, length = stored.get("relative_path"), stored.get("offset"), stored.get("length")
        if type(file) is not str or type(offset) is not int or type(length) is not int or min(offset, length) < 0:
            raise FormatError("describes a place that makes no sense")
        if not records.safe_relative(file):
            raise FormatError("names the file {!r}, which is outside of the checkpoint".format(file[:80]))
        ends[file] = max(ends.get(file, 0), offset + length)
        name = _fields(index, _INDEX).get("fqn")
        if length <= MIN_STORED and isinstance(name, str) and not stored.get("transform_descriptors"):
            small[name] = Place(file, offset, length)
    return DcpMetadata(
        ends, [name for name in cast("Dict[JsonValue, JsonValue]", names) if isinstance(name, str)], small
    )


def number(path: str, place: Place) -> Optional[float]:
    """Return the number that a part of the state is.

    None where it is another value, or has another format. ``path``: of the file. Raises OSError.
    """
    try:
        with TorchArchive(path, place.offset, place.length) as archive:
            return archive.number(archive.load())
    except (FormatError, records.RecordError):  # the state may be stored as safetensors
        return None


def _fields(value: object, kind: object) -> Dict[str, JsonValue]:
    """Fields of an instance of a dataclass, which is pickled with its ``__dict__``."""
    state: object = value.state if type(value) is Record and tuple(value.kind) == kind else None
    if not isinstance(state, dict):
        raise FormatError("is no metadata of a distributed checkpoint")
    return cast("Dict[str, JsonValue]", state)
