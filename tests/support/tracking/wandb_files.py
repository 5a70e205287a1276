"""Read the files that W&B writes offline."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7  # of LevelDB's log format, in bytes; W&B's file begins with a header of the same size


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics in a ``.wandb`` file, in order. The file may still be written."""
    from wandb.proto import wandb_internal_pb2

    found: list[dict[str, Any]] = []
    for data in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)  # pyright: ignore[reportAttributeAccessIssue]
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the records of LevelDB's log format: parts with CRC, length and kind, none across the end of a block."""
    at, record = HEADER, b""
    while at + HEADER <= len(data):
        if (room := BLOCK - at % BLOCK) < HEADER:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if not kind or at + HEADER + length > len(data):
            return
        record += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # complete, or the last part
            yield record
            record = b""
