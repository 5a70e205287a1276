"""Scalars in TensorBoard's event files."""

from __future__ import annotations

import struct
from typing import Dict, List, Optional

from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics.parser import IndependentParts, Parsed
from midstream_host.driver.metrics.rows import MAX_STEP, NAME_LIMIT, Columns, Point
from midstream_host.formats import protobuf
from midstream_host.formats.framed_records import RECORD_LIMIT, LargeRecordError, tf_records

PATTERN = "**/events.out.tfevents.*"
_DTYPES = {1: "<f", 2: "<d"}  # of a tensor: float, double


class TensorBoardParser(IndependentParts):
    """Parser of an event file; see `Parser`.

    A damaged record is waited for: it may be one that is being written. One that is too large, as a film is, is passed
    over.
    """

    def __init__(self, columns: Columns) -> None:  # noqa: ARG002
        """``columns`` are not needed: events have their step and their time."""
        self._skip = 0  # bytes of a large record that are passed over

    @property
    def state(self) -> JsonValue:
        """Bytes that are passed over."""
        return self._skip

    def restore(self, state: JsonValue) -> None:
        """Continue; see `Parser.restore`."""
        self._skip = state if type(state) is int and state >= 0 else 0

    def parse(self, data: bytes, offset: int) -> Parsed:  # noqa: ARG002
        """Parse the complete records; see `Parser.parse`."""
        points: List[Point] = []
        consumed = 0
        while True:
            passed = min(self._skip, len(data) - consumed)
            consumed, self._skip = consumed + passed, self._skip - passed
            begin = consumed
            try:
                for record, end in tf_records(data[begin:]):
                    point = _point(record)
                    consumed = begin + end
                    if point is not None:
                        points.append(point)
            except LargeRecordError as error:
                self._skip = error.size
                continue
            except FormatError as error:
                return Parsed(points, consumed, str(error))
            line = "a record is passed over, at most {} bytes are read; {} are left".format(RECORD_LIMIT, self._skip)
            return Parsed(points, consumed, line if self._skip else "")


def _point(event: bytes) -> Optional[Point]:
    """Scalars of an event; None where it has none."""
    time, step = None, 0
    values: Dict[str, float] = {}
    for number, _, value in protobuf.fields(event):
        if number == 1:
            time = protobuf.double(value)
        elif number == 2:
            step = protobuf.signed(value)
        elif number == 5:
            for inner, _, summary in protobuf.fields(protobuf.message(value)):
                if inner == 1:
                    _add_scalar(values, protobuf.message(summary))
    return Point(step, time, values) if values and 0 <= step < MAX_STEP else None


def _add_scalar(values: Dict[str, float], summary: bytes) -> None:
    tag, scalar = "", None
    for number, wire, value in protobuf.fields(summary):
        if number == 1:
            tag = protobuf.text(value)
        elif number == 2 and wire == protobuf.FIXED32:
            scalar = protobuf.single(value)
        elif number == 8:
            scalar = _tensor_scalar(protobuf.message(value))
    if scalar is not None and tag:
        values[tag[:NAME_LIMIT]] = scalar


def _tensor_scalar(tensor: bytes) -> Optional[float]:
    """Return a one-element tensor's number; None for another kind or more elements."""
    dtype, content, scalar = 0, b"", None
    for number, wire, value in protobuf.fields(tensor):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 4:
            content = protobuf.message(value)
        elif number in (5, 6):  # repeated float or double, packed or not
            data = protobuf.message(value)
            code = "<f" if number == 5 else "<d"
            if wire in (protobuf.FIXED32, protobuf.FIXED64, protobuf.BYTES) and len(data) == struct.calcsize(code):
                scalar = float(struct.unpack(code, data)[0])
    code = _DTYPES.get(dtype)
    if code is not None and len(content) == struct.calcsize(code):
        return float(struct.unpack(code, content)[0])
    return scalar
