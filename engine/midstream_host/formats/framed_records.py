"""Framed records: TFRecord (TensorBoard's events) and LevelDB's log (W&B's files)."""

from __future__ import annotations

import struct
import zlib
from typing import Iterator, List, Tuple

from midstream_core.crc32c import masked
from midstream_core.format_error import FormatError

RECORD_LIMIT = 8 << 20  # bytes of a record that is read
CHECKED = 64 << 10  # bytes: the data of larger records, which are pictures, is passed over without a check of its CRC
_TF_HEADER, _TF_FOOTER = 12, 4
_BLOCK, _HEADER = 32768, 7  # of LevelDB's log
_COMPLETE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
WANDB_HEADER = b":W&B\xe1\xbe\x00"


class LargeRecordError(FormatError):
    """Error of a record that is too large to be read; later records can be read.

    ``size``: bytes of the record and its frame.
    """

    def __init__(self, size: int) -> None:
        super().__init__("a record has {} bytes, and at most {} are read".format(size, RECORD_LIMIT))
        self.size = size


def tf_records(data: bytes) -> Iterator[Tuple[bytes, int]]:
    """Yield (record, position after it) of the complete records in ``data``.

    ``data`` begins with a record.

    A record that ends after ``data`` is left for the next read.

    Raises:
        LargeRecordError: A record is too large; those before it were yielded.
        FormatError: A record is damaged; those before it were yielded.
    """
    at = 0
    while at + _TF_HEADER <= len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        if masked(data[at : at + 8]) != crc:
            raise FormatError("a record's length is damaged")
        if size > RECORD_LIMIT:
            raise LargeRecordError(_TF_HEADER + size + _TF_FOOTER)
        begin = at + _TF_HEADER
        end = begin + size + _TF_FOOTER
        if end > len(data):
            return
        record = data[begin : begin + size]
        if size <= CHECKED and masked(record) != struct.unpack_from("<I", data, end - _TF_FOOTER)[0]:
            raise FormatError("a record is damaged: its CRC differs")
        yield record, end
        at = end


def wandb_records(data: bytes, offset: int) -> Iterator[Tuple[bytes, int]]:
    """Yield (record, position after it in ``data``) of a ``.wandb`` file.

    ``offset``: position of ``data`` in the file.

    Raises:
        FormatError: A part of a record is damaged, or the file is none of W&B; records before it were yielded.
    """
    at = 0
    if offset == 0:
        if len(data) < len(WANDB_HEADER):
            return
        if not data.startswith(WANDB_HEADER):
            raise FormatError("is no file of W&B")
        at = len(WANDB_HEADER)
    parts: List[bytes] = []
    size = 0
    while True:
        room = _BLOCK - (offset + at) % _BLOCK
        if room < _HEADER:
            at += room
        if at + _HEADER > len(data):
            return
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        if not _COMPLETE <= kind <= _LAST:
            raise FormatError("a record is damaged: it has no kind")
        end = at + _HEADER + length
        if end > len(data):
            return
        fragment = data[at + _HEADER : end]
        if zlib.crc32(fragment, zlib.crc32(bytes([kind]))) != crc:
            raise FormatError("a record is damaged: its CRC differs")
        if (kind in (_COMPLETE, _FIRST)) == bool(parts):
            raise FormatError("a record is damaged: its parts do not follow each other")
        parts.append(fragment)
        size += length
        if size > RECORD_LIMIT:
            raise FormatError("a record has more than {} bytes".format(RECORD_LIMIT))
        at = end
        if kind in (_COMPLETE, _LAST):
            yield b"".join(parts), at
            parts, size = [], 0
