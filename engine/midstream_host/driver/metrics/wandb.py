"""Metrics in the binary file that W&B writes, offline or not: ``run-*.wandb``."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Optional, Tuple

from midstream_core.format_error import FormatError
from midstream_core.json_types import JsonValue
from midstream_host.driver.metrics.parser import IndependentParts, Parsed
from midstream_host.driver.metrics.rows import Columns, Point
from midstream_host.formats import protobuf
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
                name, item_value = _item(protobuf.message(item))
                if item_value is not None:
                    values[name] = item_value
            elif inner == 2:
                for field, _, step in protobuf.fields(protobuf.message(item)):
                    if field == 1:
                        values.setdefault("_step", protobuf.signed(step))
    return values


def _item(data: bytes) -> Tuple[str, Optional[float]]:
    keys: List[str] = []
    item_value: Any = None
    for number, _, value in protobuf.fields(data):
        if number in (1, 2):
            keys.append(protobuf.text(value))
        elif number == 5:
            item_value = protobuf.zigzag(value)
        elif number == 6:
            item_value = protobuf.double(value)
        elif number in (8, 16):
            text = protobuf.text(value)
            try:
                item_value = json.loads(text) if len(text) <= _VALUE_LIMIT else None
            except (ValueError, RecursionError):
                item_value = None
    plain = isinstance(item_value, (int, float)) and not isinstance(item_value, bool)
    return "/".join(key for key in keys if key), item_value if plain else None
