"""Read TensorBoard event files."""

from __future__ import annotations

import struct
from pathlib import Path


def scalars(directory: Path) -> dict[tuple[str, int], float]:
    """Return (tag, step) -> value of all event files. Their records are length, CRC, data, CRC (TFRecord framing)."""
    from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    found: dict[tuple[str, int], float] = {}
    for path in sorted(directory.glob("events.*")):
        data, at = path.read_bytes(), 0
        while at + 8 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            if at + 16 + size > len(data):
                break  # it is being written
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
    return found
