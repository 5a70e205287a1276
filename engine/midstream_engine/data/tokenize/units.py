"""The pieces of work that tokenizing is cut into, and the finished ones on the disk.

A unit is a function of the sources alone, not of the number of processes. ``<n>.tokens`` holds its token ids, each
document ended by EOS; ``<n>.lengths`` two int64 a document: bytes of text, tokens; ``<n>.json`` is written last and
makes it count. What a killed program had finished is found again, what it had begun is not.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import google_crc32c
import numpy as np

from midstream_engine import records
from midstream_engine.data.sources import formats
from midstream_engine.data.sources.formats import Piece
from midstream_engine.data.sources.source_file import Source
from midstream_engine.data.tokenize.tokenizer import Tokenizer

UNIT_BYTES = 32 << 20  # of text, about
_COMPRESSION = 4  # times smaller, about
_UNKNOWN = 8 << 20  # bytes of a source whose size nobody knows
_DATASET_ROWS = 20_000
_GROUP = 1 << 20  # bytes of text handed to the tokenizer at a time


@dataclass(frozen=True)
class Unit:
    """``size``: bytes as stored, 0 where unknown; for showing progress."""

    number: int
    pieces: tuple[Piece, ...]
    size: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Unit:
        pieces = tuple(Piece(Source(**piece["source"]), piece["start"], piece["end"]) for piece in value["pieces"])
        return cls(value["number"], pieces, value["size"])


@dataclass(frozen=True)
class Finished:
    """A unit's ``<n>.json``."""

    documents: int
    tokens: int
    text_bytes: int
    crc32c: int  # of the tokens, then the lengths


def cut(sources: Sequence[Source], unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Units of about ``unit_bytes`` of text, in order: large files in several, small ones together."""
    units: list[Unit] = []
    pieces: list[Piece] = []
    gathered = stored = 0

    def close() -> None:
        nonlocal gathered, stored
        if pieces:
            units.append(Unit(len(units), tuple(pieces), stored))
        pieces.clear()
        gathered = stored = 0

    for source in sources:
        for piece, text, size in _pieces(source, unit_bytes):
            if gathered and gathered + text > unit_bytes:
                close()
            pieces.append(piece)
            gathered, stored = gathered + text, stored + size
    close()
    return units


def _pieces(source: Source, unit_bytes: int) -> Iterator[tuple[Piece, int, int]]:
    """(piece, its text's bytes about, its stored bytes)."""
    kind, compression = formats.kind_of(source)
    size = max(source.size, 0)
    if kind == formats.DATASET:
        assert source.rows is not None
        for start in range(0, source.rows, _DATASET_ROWS):
            yield Piece(source, start, min(start + _DATASET_ROWS, source.rows)), unit_bytes, 0
    elif kind == formats.LINES and not compression and size > unit_bytes and not source.path.startswith("http"):
        for start in range(0, size, unit_bytes):
            stored = min(unit_bytes, size - start)
            yield Piece(source, start, start + stored if start + stored < size else None), stored, stored
    elif kind == formats.ROWS and size * _COMPRESSION > unit_bytes and not source.path.startswith("http"):
        groups = formats.row_groups(source)
        total, start, gathered = max(sum(groups), 1), 0, 0
        for number, part in enumerate(groups):
            gathered += part
            if gathered >= unit_bytes or number == len(groups) - 1:
                yield Piece(source, start, number + 1), gathered, size * gathered // total
                start, gathered = number + 1, 0
    else:
        times = _COMPRESSION if compression or kind == formats.ROWS else 1
        yield Piece(source), (size if source.size >= 0 else _UNKNOWN) * times, size


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """How ids are stored: the smaller of uint16 and uint32 that holds them all, little-endian."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def finished(directory: str, number: int) -> Finished | None:
    """The unit's record where it was finished, else None."""
    value = records.read_json_or_none(os.path.join(directory, f"{number}.json"))
    return None if value is None else Finished(**value)


def tokenize(unit: Unit, directory: str, tokenizer: Tokenizer, text_key: str, max_bytes: int | None) -> Finished:
    """Write the unit's files. It stops where its own text alone has exceeded ``max_bytes``."""
    dtype = token_dtype(tokenizer)
    eos = np.asarray([tokenizer.eos], dtype).tobytes()
    lengths: list[tuple[int, int]] = []
    tokens = total = 0
    crc = 0
    path = os.path.join(directory, f"{unit.number}.tokens")
    temporary = f"{path}.{os.getpid()}.tmp"
    with open(temporary, "wb", 1 << 20) as file:
        texts = (text for piece in unit.pieces for text in formats.documents(piece, text_key))
        for group in _groups(texts, max_bytes):
            for text, ids in zip(group, tokenizer.encode_all(group), strict=True):
                data = ids.astype(dtype).tobytes() + eos
                file.write(data)
                crc = google_crc32c.extend(crc, data)
                lengths.append((len(text), len(data) // dtype.itemsize))
                tokens, total = tokens + lengths[-1][1], total + len(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    data = np.asarray(lengths, "<i8").tobytes()
    records.write_bytes(os.path.join(directory, f"{unit.number}.lengths"), data)
    record = Finished(len(lengths), tokens, total, google_crc32c.extend(crc, data))
    records.write_json(os.path.join(directory, f"{unit.number}.json"), asdict(record))
    return record


def _groups(texts: Iterable[bytes], limit: int | None) -> Iterator[list[bytes]]:
    """Documents to be tokenized together. The last is the one that makes their bytes exceed ``limit``."""
    group: list[bytes] = []
    gathered = total = 0
    for text in texts:
        group.append(text)
        gathered, total = gathered + len(text), total + len(text)
        if limit is not None and total > limit:
            break
        if gathered >= _GROUP:
            yield group
            group, gathered = [], 0
    if group:
        yield group


def read(directory: str, number: int, record: Finished, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray] | None:
    """(tokens [tokens], lengths int64 [documents, 2]) of a finished unit; None where its files are not what was
    written: after a power cut, say."""
    try:
        tokens = np.fromfile(os.path.join(directory, f"{number}.tokens"), dtype)
        lengths = np.fromfile(os.path.join(directory, f"{number}.lengths"), "<i8").reshape(-1, 2)
    except (FileNotFoundError, ValueError):
        return None
    crc = google_crc32c.extend(google_crc32c.value(tokens.tobytes()), lengths.tobytes())
    return (tokens, lengths) if crc == record.crc32c else None


def forget(directory: str, number: int) -> None:
    """Make a unit unfinished."""
    os.unlink(os.path.join(directory, f"{number}.json"))
