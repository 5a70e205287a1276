"""Metrics in the binary file that W&B writes, offline or not: ``run-*.wandb``."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics.parser import IndependentParts, Parsed
from midstream_host.driver.metrics.rows import Columns, Point
from midstream_host.formats import protobuf
from midstream_host.formats.errors import FormatError
from midstream_host.formats.framed_records import wandb_records

PATTERN = "**/run-*.wandb"
_VALUE_LIMIT = 4096  # characters of a value: numbers are short, and histograms are left out


class WandbParser(IndependentParts):
    """Parses a file of W&B; see `Parser`."""

    def __init__(self, columns: Columns) -> None:
        """``columns``: names of the step and the time."""
        self._columns = columns

    def parse(self, data: bytes, offset: int) -> Parsed:
        """Parse the complete records; see `Parser.parse`."""
        points: List[Point] = []
        consumed = 0
        try:
            for record, end in wandb_records(data, offset):
                values = _history(record)
                consumed = end
                point = self._columns.point(values) if values else None
                if point is not None and point.values:
                    points.append(point)
        except FormatError as error:
            return Parsed(points, consumed, str(error))
        return Parsed(points, consumed)


def _history(record: bytes) -> Dict[str, JsonValue]:
    """Values of a row of metrics; empty for a record of another kind."""
    values: Dict[str, JsonValue] = {}
    for number, _, value in protobuf.fields(record):
        if number != 2:
            continue
        for inner, _, item in protobuf.fields(protobuf.message(value)):
            if inner == 1:
                name, found = _item(protobuf.message(item))
                if found is not None:
                    values[name] = found
            elif inner == 2:
                for field, _, step in protobuf.fields(protobuf.message(item)):
                    if field == 1:
                        values.setdefault("_step", protobuf.signed(step))
    return values


def _item(data: bytes) -> Tuple[str, Optional[float]]:
    keys: List[str] = []
    found: Any = None
    for number, _, value in protobuf.fields(data):
        if number in (1, 2):
            keys.append(protobuf.text(value))
        elif number == 5:
            found = protobuf.zigzag(value)
        elif number == 6:
            found = protobuf.double(value)
        elif number in (8, 16):
            text = protobuf.text(value)
            try:
                found = json.loads(text) if len(text) <= _VALUE_LIMIT else None
            except (ValueError, RecursionError):
                found = None
    plain = isinstance(found, (int, float)) and not isinstance(found, bool)
    return "/".join(key for key in keys if key), found if plain else None
