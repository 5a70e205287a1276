"""Documents of a file, plain or compressed.

A document is a line, a row, or the complete file.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import tempfile
import urllib.parse
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from midstream_core.object_store.urls import in_bucket
from midstream_engine.data.errors import DataError
from midstream_engine.data.sources import bucket, http, hugging_face_hub
from midstream_engine.data.sources.source_file import SourceFile, listed_version

LINES, LIST_OR_LINES, ROWS, DATASET, DOCUMENT = "lines", "list or lines", "rows", "dataset", "document"
_KINDS = {".jsonl": LINES, ".ndjson": LINES, ".json": LIST_OR_LINES, ".parquet": ROWS}
_COMPRESSIONS = (".gz", ".zst")
# Files of these would be one document each, without any text.
_NOT_TEXT = (".7z", ".br", ".bz2", ".lz4", ".lzma", ".tar", ".tgz", ".xz", ".zip", ".zstd")


@dataclass(frozen=True)
class SourcePart:
    """A part [start, end) of a source; ``end`` None: to its end.

    Of lines in bytes (a line belongs to the piece in which it starts), of a Parquet file in row groups, of a dataset in
    rows.
    """

    source: SourceFile
    start: int = 0
    end: int | None = None


def kind_of(source: SourceFile) -> tuple[str, str]:
    """Return (kind, compression) by the name: ``a.jsonl.gz`` -> (LINES, ".gz").

    Raises:
        DataError: The name is that of an archive or a compression that is not read.
    """
    if source.path.startswith(hugging_face_hub.SCHEME):
        return DATASET, ""
    path = urllib.parse.urlsplit(source.path).path if source.path.startswith("http") else source.path
    stem, last = os.path.splitext(path.lower())
    compression = last if last in _COMPRESSIONS else ""
    kind = os.path.splitext(stem)[1] if compression else last
    if kind in _NOT_TEXT:
        raise DataError(f"data: {source.path}: {kind} is not read (hint: unpack it; of compressions .gz and .zst are)")
    return _KINDS.get(kind, DOCUMENT), compression


def documents(piece: SourcePart, text_key: str) -> Iterator[bytes]:
    """Yield the text of each document of ``piece``, UTF-8.

    Raises:
        DataError: The text cannot be read, or a local file has changed since it was listed; the message has path and
            line or row.
    """
    source = piece.source
    kind, compression = kind_of(source)
    try:
        _check_unchanged(source)
        if kind == DATASET:
            assert source.rows is not None
            yield from hugging_face_hub.texts(
                source, text_key, piece.start, source.rows if piece.end is None else piece.end
            )
        elif kind == ROWS:
            yield from _rows(piece, text_key)
        else:
            with open_source(source) as raw, _decompressed(raw, compression) as file:
                if kind == DOCUMENT:
                    yield file.read()
                elif kind == LIST_OR_LINES and _is_list(file):
                    yield from _list(file, source.path, text_key)
                else:
                    yield from _lines(file, piece, text_key)
        _check_unchanged(source)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{source.path}: {error}") from None


def _check_unchanged(source: SourceFile) -> None:
    """Check that a local file is the one that was listed.

    Its parts are read one after the other: of a file that changes between, documents would be lost or read twice.

    Raises:
        DataError: The file has changed.
    """
    if source.local and listed_version(os.stat(source.path)) != (source.size, source.version):
        raise DataError(f"data: {source.path} has changed while it was read (hint: start again)")


@contextlib.contextmanager
def open_source(source: SourceFile) -> Iterator[IO[bytes]]:
    """Open the stored bytes of ``source``, as a context manager.

    Local files and objects in buckets are seekable.
    """
    if source.local:
        with open(source.path, "rb") as file:
            yield file
    elif in_bucket(source.path):
        with bucket.open_object(source) as file:
            yield file
    else:
        with http.open_stream(source) as file:
            yield file


def row_groups(source: SourceFile) -> list[int]:
    """Return the uncompressed bytes of each row group of a Parquet file."""
    with _parquet(source) as file:
        return [file.metadata.row_group(number).total_byte_size for number in range(file.metadata.num_row_groups)]


# ------------------------------------------------------------------------------------------------------ compression


@contextlib.contextmanager
def _decompressed(raw: IO[bytes], compression: str) -> Iterator[IO[bytes]]:
    if compression and isinstance(raw, io.BufferedReader) and not raw.peek(1):
        # Compressed, no text has some bytes too; gzip's reader takes none for no text.
        raise EOFError(f"is empty: {compression} files are not, even without text")
    if compression == ".gz":
        with gzip.open(raw, "rb") as file:
            yield file  # pyright: ignore[reportReturnType]
    elif compression == ".zst":
        with io.BufferedReader(_Zstandard(raw), 1 << 18) as file:
            yield file
    else:
        yield raw


class _Zstandard(io.RawIOBase):
    """Reader of consecutive Zstandard frames.

    Unlike the package's own reader it rejects a file that ends within a frame.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        try:
            import zstandard
        except ImportError:
            raise DataError("data: .zst needs the package zstandard: pip install zstandard") from None
        self._raw, self._error = raw, zstandard.ZstdError
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._frame: Any = None
        self._rest = b""  # compressed, not decompressed yet
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._ready:
            data = self._rest or self._raw.read(1 << 17)
            self._rest = b""
            if not data:
                if self._frame is not None:
                    raise EOFError("ends in the middle of a Zstandard frame")
                return 0
            self._frame = self._frame or self._new()
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._error as error:
                raise OSError(f"damaged Zstandard data ({error})") from None
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


# ------------------------------------------------------------------------------------------------------------- JSON


def _is_list(file: IO[bytes]) -> bool:
    """Return whether the first character is ``[``, without moving the file's position."""
    peek = getattr(file, "peek", None)
    start = peek(64) if peek else b""
    return start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def _list(file: IO[bytes], path: str, text_key: str) -> Iterator[bytes]:
    try:
        values = json.loads(file.read())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from None
    for number, value in enumerate(values):
        yield _text(value, f"{path}, item {number}", text_key)


def _lines(file: IO[bytes], piece: SourcePart, text_key: str) -> Iterator[bytes]:
    path, position = piece.source.path, piece.start
    if position:  # a line that starts earlier belongs to the previous piece
        file.seek(position - 1)
        position += len(file.readline()) - 1
    for number, line in enumerate(file, 1):
        if piece.end is not None and position >= piece.end:
            return
        where = f"{path}:{number}" if not piece.start else f"{path}, line at byte {position}"
        position += len(line)
        if line.strip():
            try:
                value = json.loads(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON ({error})") from None
            yield _text(value, where, text_key)


def _text(value: object, where: str, text_key: str) -> bytes:
    text = value.get(text_key) if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: has no text under {text_key!r} (data.text_key names the field)")
    return text.encode("utf-8", "replace")  # a lone surrogate in one page must not end the build


# ---------------------------------------------------------------------------------------------------------- Parquet


@contextlib.contextmanager
def _parquet(source: SourceFile) -> Iterator[Any]:
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(f"{source.path} needs the package pyarrow: pip install pyarrow") from None
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_source(source))
        if source.path.startswith("http"):  # its index is at the end, so that a stream is stored first
            stored = stack.enter_context(tempfile.TemporaryFile())
            while block := file.read(1 << 20):
                stored.write(block)
            stored.seek(0)
            file = stored
        try:
            yield stack.enter_context(ParquetFile(file))
        except ArrowException as error:
            raise DataError(f"{source.path}: {' '.join(str(error).split())}") from None


def _rows(piece: SourcePart, text_key: str) -> Iterator[bytes]:
    path = piece.source.path
    with _parquet(piece.source) as file:
        names = file.schema_arrow.names
        if text_key not in names:
            raise DataError(f"{path}: has no column {text_key!r} (data.text_key); it has {', '.join(names)}")
        groups = range(file.metadata.num_row_groups)[piece.start : piece.end]
        row = sum(file.metadata.row_group(number).num_rows for number in range(piece.start))
        for batch in file.iter_batches(batch_size=1024, row_groups=groups, columns=[text_key], use_threads=False):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise DataError(f"{path}, row {row}: {text_key!r} is no text")
                row += 1
                yield text.encode("utf-8", "replace")
