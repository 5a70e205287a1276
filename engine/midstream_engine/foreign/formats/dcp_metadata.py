"""The ``.metadata`` of a distributed checkpoint of torch.

It says which file has which bytes, and has the names of the state.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, cast

from midstream_engine import records, restricted_pickle
from midstream_engine.foreign.formats.errors import FormatError
from midstream_engine.foreign.formats.torch_archive import PlainValues
from midstream_engine.restricted_pickle import Record

METADATA_LIMIT = 32 << 20  # bytes
_METADATA = ("torch.distributed.checkpoint.metadata", "Metadata")
_STORAGE = ("torch.distributed.checkpoint.filesystem", "_StorageInfo")


class DcpMetadata(NamedTuple):
    """Contents of a checkpoint.

    ``ends``: by file, the bytes that it has at least; ``names``: those of the state.
    """

    ends: Dict[str, int]
    names: List[str]


def read(path: str) -> DcpMetadata:
    """Read a ``.metadata`` file.

    Raises:
        FormatError: It is partial, or none.
        OSError: It cannot be read.
    """
    try:
        value = restricted_pickle.load(records.read_bytes(path, METADATA_LIMIT), PlainValues())
    except restricted_pickle.PickleError as error:
        raise FormatError("cannot be read: {}".format(error)) from None
    fields = _fields(value, _METADATA)
    places: Any = fields.get("storage_data")
    names: Any = fields.get("state_dict_metadata")
    if not isinstance(places, dict) or not isinstance(names, dict):
        raise FormatError("names no files")
    ends: Dict[str, int] = {}
    for place in cast("Dict[Any, Any]", places).values():
        stored = _fields(place, _STORAGE)
        file, offset, length = stored.get("relative_path"), stored.get("offset"), stored.get("length")
        if type(file) is not str or type(offset) is not int or type(length) is not int or min(offset, length) < 0:
            raise FormatError("describes a place that makes no sense")
        if not records.safe_relative(file):
            raise FormatError("names the file {!r}, which is outside of the checkpoint".format(file[:80]))
        ends[file] = max(ends.get(file, 0), offset + length)
    return DcpMetadata(ends, [name for name in cast("Dict[Any, Any]", names) if isinstance(name, str)])


def _fields(value: Any, kind: Any) -> Dict[str, Any]:
    """Fields of an instance of a dataclass, which is pickled with its ``__dict__``."""
    state: Any = value.state if type(value) is Record and tuple(value.kind) == kind else None
    if not isinstance(state, dict):
        raise FormatError("is no metadata of a distributed checkpoint")
    return cast("Dict[str, Any]", state)
