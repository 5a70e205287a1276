"""Base class of the records: frozen dataclasses with a JSON form.

The form is checked on reading.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Type, TypeVar, cast

from midstream_core import json_shapes
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty
from midstream_core.records.errors import DamagedRecordError, NewerFormatError, RecordError
from midstream_core.records.files import parse_json, read_bytes, write_json

Record = TypeVar("Record", bound="JsonRecord")
REMEMBERED = 1 << 14  # bytes of a file whose record is remembered: most files are read again and have not changed


@dataclasses.dataclass(frozen=True)
class JsonRecord:
    """Frozen dataclass with a JSON form.

    Fields that a newer version added are ignored on reading.

    A newer version raises ``FORMAT`` where ignoring them would be wrong: readers refuse a format newer than their own.
    """

    LIMIT: ClassVar[int] = 1 << 20  # bytes of its file
    FORMAT: ClassVar[int] = 0  # newest format that is read, and the one that is written; 0: the JSON has no ``format``

    def to_json(self) -> Dict[str, Any]:
        """Return the JSON object of the record."""
        value: Dict[str, Any] = _plain(self)
        return {"format": self.FORMAT, **value} if self.FORMAT else value

    @classmethod
    def from_json(cls: Type[Record], value: JsonValue, where: str = "") -> Record:
        """Check and decode.

        Raises RecordError that names ``where`` and the field that is missing or mistyped, NewerFormatError for a newer
        format.
        """
        if cls.FORMAT:
            check_format(value, cls.FORMAT, where or cls.__name__)
        try:
            json_shapes.check(cls, value)
        except json_shapes.ShapeError as error:
            raise RecordError(f"{where or cls.__name__}: {error}") from None
        return cls.from_checked(object_or_empty(value))

    @classmethod
    def from_checked(cls: Type[Record], value: JsonObject) -> Record:
        """Decode a value that was checked before, as part of a larger one."""
        return cls(**{key: value[key] for key in _field_names(cls) if key in value})

    @classmethod
    def read(cls: Type[Record], path: str) -> Record:
        """Read a file.

        Raises FileNotFoundError where it is absent, DamagedRecordError where it cannot be read.
        """
        data = read_bytes(path, cls.LIMIT)
        try:
            return _decoded(cls, data) if len(data) <= REMEMBERED else _decode(cls, data)
        except RecordError:
            pass  # its message has no path
        try:
            return _decode(cls, data, path)
        except DamagedRecordError:
            raise
        except RecordError as error:
            raise DamagedRecordError(str(error)) from None

    @classmethod
    def read_or_none(cls: Type[Record], path: str) -> Optional[Record]:
        """Read a file; None where it is absent.

        Raises DamagedRecordError where it cannot be read.
        """
        try:
            return cls.read(path)
        except FileNotFoundError:
            return None

    def write(self, path: str, *, durable: bool = True) -> None:
        """Replace the file atomically."""
        write_json(path, self.to_json(), durable=durable)


def _decode(kind: Type[Record], data: bytes, path: str = "") -> Record:
    return kind.from_json(parse_json(data, path), path)


_decoded = functools.lru_cache(maxsize=256)(_decode)  # the same bytes are the same record; records are never changed


def _plain(value: Any) -> Any:
    """Return records as dictionaries, and new lists and dictionaries for those within.

    ``dataclasses.asdict`` does the same for any value, several times slower.
    """
    if isinstance(value, (str, int, float, type(None))):
        return value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in cast("Dict[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in cast("List[object]", value)]
    return {name: _plain(getattr(value, name)) for name in _field_names(value.__class__)}


@functools.lru_cache(maxsize=None)
def _field_names(kind: Type[JsonRecord]) -> Tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def check_format(value: JsonValue, newest: int, where: str) -> None:
    """Check the ``format`` of a JSON object, before its other fields.

    A newer format may have others.

    An object without ``format`` is of format 1. Raises NewerFormatError for a format above ``newest``, RecordError for
    a value that is no format.
    """
    number = object_or_empty(value).get("format", 1)
    if type(number) is not int or number < 1:
        raise RecordError(f"{where}: format: expected an integer from 1 on, found {str(number)[:60]!r}")
    if number > newest:
        raise NewerFormatError(
            f"{where}: format {number} is newer than this midstream reads ({newest}): update midstream"
        )
