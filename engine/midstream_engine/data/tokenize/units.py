"""Units of tokenizing, and the finished ones on the disk.

A unit depends on the sources alone, not on the number of processes. ``<n>.tokens`` has its token ids, each document
ended by EOS; ``<n>.lengths`` has two int64 per document: bytes of text, tokens; ``<n>.json`` is written last and makes
the unit finished. The units that a killed process had finished are reused.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import google_crc32c
import numpy as np

from midstream_core import records
from midstream_core.json_types import int_of, object_or_empty
from midstream_engine.data.sources import formats
from midstream_engine.data.sources.formats import SourcePart
from midstream_engine.data.sources.source_file import SourceFile
from midstream_engine.data.token_ids import first_unknown, unknown_id
from midstream_engine.data.tokenize.tokenizer import Tokenizer

UNIT_BYTES = 32 << 20  # of text, about
_COMPRESSION = 4  # typical ratio of text to compressed bytes
_UNKNOWN = 8 << 20  # assumed bytes of a source of unknown size
_DATASET_ROWS = 20_000
_GROUP = 1 << 20  # bytes of text handed to the tokenizer at a time


@dataclass(frozen=True)
class Unit:
    """Pieces of sources that are tokenized together.

    ``size``: stored bytes, 0 if unknown; for progress alone.
    """

    number: int
    pieces: tuple[SourcePart, ...]
    size: int

    def to_json(self) -> dict[str, Any]:
        """Return the unit as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Unit:
        """Return the unit of ``to_json``."""
        pieces = tuple(
            SourcePart(SourceFile(**piece["source"]), piece["start"], piece["end"]) for piece in value["pieces"]
        )
        return cls(value["number"], pieces, value["size"])


@dataclass(frozen=True)
class Finished:
    """The record of a finished unit, ``<n>.json``."""

    documents: int
    tokens: int
    text_bytes: int
    crc32c: int  # of the tokens, then the lengths


def cut(sources: Sequence[SourceFile], unit_bytes: int = UNIT_BYTES) -> list[Unit]:
    """Divide sources into units of about ``unit_bytes`` of text, in order.

    Large files are divided, small ones joined.
    """
    units: list[Unit] = []
    pieces: list[SourcePart] = []
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


def _pieces(source: SourceFile, unit_bytes: int) -> Iterator[tuple[SourcePart, int, int]]:
    """Yield (piece, estimated bytes of text, stored bytes)."""
    kind, compression = formats.kind_of(source)
    size = max(source.size, 0)
    if kind == formats.DATASET:
        assert source.rows is not None
        for start in range(0, source.rows, _DATASET_ROWS):
            yield SourcePart(source, start, min(start + _DATASET_ROWS, source.rows)), unit_bytes, 0
    elif kind == formats.LINES and not compression and size > unit_bytes and not source.path.startswith("http"):
        for start in range(0, size, unit_bytes):
            stored = min(unit_bytes, size - start)
            yield SourcePart(source, start, start + stored if start + stored < size else None), stored, stored
    elif kind == formats.ROWS and size * _COMPRESSION > unit_bytes and not source.path.startswith("http"):
        groups = formats.row_groups(source)
        total, start, gathered = max(sum(groups), 1), 0, 0
        for number, group in enumerate(groups):
            gathered += group
            if gathered >= unit_bytes or number == len(groups) - 1:
                yield SourcePart(source, start, number + 1), gathered, size * gathered // total
                start, gathered = number + 1, 0
    else:
        times = _COMPRESSION if compression or kind == formats.ROWS else 1
        yield SourcePart(source), (size if source.size >= 0 else _UNKNOWN) * times, size


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    """Return the little-endian type of stored ids: uint16 if it suffices, else uint32."""
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def finished(directory: str, number: int) -> Finished | None:
    """Return the unit's record if it is finished, else None."""
    value = records.read_json_or_none(os.path.join(directory, f"{number}.json"))
    if value is None:
        return None
    return Finished(**{name: int_of(number) for name, number in object_or_empty(value).items()})


def tokenize(unit: Unit, directory: str, tokenizer: Tokenizer, text_key: str, max_bytes: int | None) -> Finished:
    """Tokenize a unit and write its files.

    The last document is the one with which the texts exceed ``max_bytes``.

    Args:
        unit: The unit.
        directory: Directory of the files.
        tokenizer: The tokenizer.
        text_key: Field of a document that has its text.
        max_bytes: Bytes of all texts together; None: no limit.

    Raises:
        DataError: The tokenizer returned an id beyond its vocabulary.
    """
    dtype = token_dtype(tokenizer)
    eos = np.asarray([tokenizer.eos], dtype).tobytes()
    lengths: list[tuple[int, int]] = []
    tokens = total = 0
    crc = 0
    path = os.path.join(directory, f"{unit.number}.tokens")
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"  # hosts that share the directory may have the same process ids
    with open(temporary, "wb", 1 << 20) as file:
        texts = (text for piece in unit.pieces for text in formats.documents(piece, text_key))
        for group in _groups(texts, max_bytes):
            for text, ids in zip(group, tokenizer.encode_all(group), strict=True):
                if (at := first_unknown(ids, tokenizer.vocab_size)) is not None:
                    raise unknown_id(_document(unit, text_key, len(lengths)), int(ids[at]), tokenizer.vocab_size)
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


def _document(unit: Unit, text_key: str, number: int) -> str:
    """Return the file of a unit's document and its number there, from 0."""
    piece = unit.pieces[0]
    for piece in unit.pieces:
        count = sum(1 for _ in formats.documents(piece, text_key))
        if number < count:
            break
        number -= count
    where = f" of the part from {piece.start} on" if piece.start else ""
    return f"{piece.source.path}: document {number}{where}"


def _groups(texts: Iterable[bytes], limit: int | None) -> Iterator[list[bytes]]:
    """Yield documents to be tokenized together, until their bytes exceed ``limit``."""
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
    """Return (tokens [tokens], lengths int64 [documents, 2]) of a finished unit.

    None if its files differ from what was written, for example after a power cut.
    """
    try:
        tokens = np.fromfile(os.path.join(directory, f"{number}.tokens"), dtype)
        lengths = np.fromfile(os.path.join(directory, f"{number}.lengths"), "<i8").reshape(-1, 2)
    except (FileNotFoundError, ValueError):
        return None
    crc = google_crc32c.extend(google_crc32c.value(tokens.tobytes()), lengths.tobytes())
    return (tokens, lengths) if crc == record.crc32c else None


def forget(directory: str, number: int) -> None:
    """Delete a unit's record, which makes it unfinished."""
    os.unlink(os.path.join(directory, f"{number}.json"))
