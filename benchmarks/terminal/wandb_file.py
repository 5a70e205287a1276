"""An offline run in the file format of W&B."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path


def write_wandb(folder: Path, points: int) -> None:
    """Write an offline run in wandb's format: a LevelDB log with wandb's messages.

    wandb takes 250 us per step, so it writes the first steps only; the others are inserted before the end.
    """
    code = (
        "import wandb\n"
        f"run = wandb.init(mode='offline', dir={str(folder)!r}, project='p', settings=wandb.Settings(silent=True))\n"
        "for step in range(10): run.log({'train/loss': 2.0 + 3.0 / (1 + step / 1000)}, step=step)\n"
        "run.finish()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    from wandb.proto import wandb_internal_pb2 as messages

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    data = file.read_bytes()
    records = list(_log_records(data))
    parsed = [messages.Record.FromString(record) for record in records]  # type: ignore[attr-defined]
    end = next(number for number, record in enumerate(parsed) if record.WhichOneof("record_type") == "exit")
    like = next(record for record in reversed(parsed) if record.WhichOneof("record_type") == "history")
    first = 1 + max(record.num for record in parsed)

    def all_records() -> Iterator[bytes]:
        yield from records[:end]
        began = {item.nested_key[0]: float(item.value_json) for item in like.history.item}
        for step in range(10, points):
            values = {
                "train/loss": 2.0 + 3.0 / (1 + step / 1000),
                "_timestamp": began["_timestamp"] + step,
                "_runtime": began["_runtime"] + step,
                "_step": step,
            }
            like.num, like.history.step.num = first + step, step
            for item in like.history.item:
                item.value_json = json.dumps(values[item.nested_key[0]])
            yield like.SerializeToString()
        parsed[end].num = first + points
        yield parsed[end].SerializeToString()

    with file.open("wb") as out:
        out.write(data[:HEADER])
        place = HEADER
        for record in all_records():
            place += out.write(_log_chunks(record, place))


BLOCK, CHUNK_HEADER, HEADER = 32768, 7, 7  # bytes, of LevelDB's log and of wandb's file
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def _log_records(data: bytes) -> Iterator[bytes]:
    """Read a LevelDB log: https://github.com/google/leveldb/blob/main/doc/log_format.md."""
    place, record = HEADER, b""
    while place < len(data):
        if BLOCK - place % BLOCK < CHUNK_HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        record = (b"" if kind in (FULL, FIRST) else record) + data[place + CHUNK_HEADER : place + CHUNK_HEADER + length]
        place += CHUNK_HEADER + length
        if kind in (FULL, LAST):
            yield record


def _log_chunks(record: bytes, place: int) -> bytes:
    """A record at ``place`` of the file. wandb's checksum is zlib's CRC-32 of the kind and the data."""
    found, begin = b"", True
    while begin or record:
        room = BLOCK - (place + len(found)) % BLOCK
        if room < CHUNK_HEADER:
            found += bytes(room)
            continue
        part, record = record[: room - CHUNK_HEADER], record[room - CHUNK_HEADER :]
        kind = (FIRST if record else FULL) if begin else (MIDDLE if record else LAST)
        found += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
        begin = False
    return found
