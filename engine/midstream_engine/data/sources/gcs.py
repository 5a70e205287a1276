"""Text files in Google Cloud Storage buckets."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import IO

from midstream_engine.data.errors import DataError, SourceNotFoundError
from midstream_engine.data.sources.source_file import Source
from midstream_engine.gcs_client import GcsClient

_gcs = GcsClient(lambda message: DataError(f"data: {message}"), anonymous_fallback=True)


def list_objects(url: str) -> list[Source]:
    """Return the objects that ``gs://bucket/name`` matches, sorted; ``*`` stays within a folder, ``**`` does not."""
    bucket, pattern = _split(url)
    literal = re.match(r"[^*?\[]*", pattern)
    assert literal is not None
    matches = _pattern(pattern)
    with _errors(url), _gcs.errors(url):
        found = [
            Source(f"gs://{bucket}/{blob.name}", blob.name.rpartition("/")[2], blob.size, str(blob.generation))
            for blob in _gcs.storage().list_blobs(_gcs.bucket(url), prefix=literal[0])
            if matches.fullmatch(blob.name)
        ]
    return sorted(found, key=lambda source: source.path)


@contextlib.contextmanager
def open_object(source: Source) -> Iterator[IO[bytes]]:
    """Open an object in the generation that was listed, if one is known, as a seekable file."""
    with _errors(source.path), _gcs.open(source.path, int(source.version) if source.version else None) as file:
        yield file


def get(url: str) -> bytes:
    """Return the bytes of a small object.

    Raises:
        SourceNotFoundError: There is no such object.
    """
    _split(url)
    with _errors(url):
        return _gcs.get(url)[0]


def create(url: str, path: str, crc32c: str) -> None:
    """Create an object from the file ``path``; an existing one must have that crc32c (base64).

    Raises:
        DataError: Another object has that name.
    """
    try:
        with _errors(url):
            _gcs.create_from_file(url, path, crc32c)
    except FileExistsError:
        raise DataError(f"data: {url}: another object has this name (hint: remove it)") from None


def put(url: str, data: bytes) -> None:
    """Write a small object; it replaces an existing one."""
    with _errors(url):
        _gcs.put(url, "", data, None)


def _split(url: str) -> tuple[str, str]:
    bucket, _, name = url.removeprefix("gs://").partition("/")
    if not (bucket and name):
        raise DataError(f"data: {url!r} names no object (hint: write gs://BUCKET/NAME)")
    return bucket, name


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SourceNotFoundError(f"data: {url}: no such object") from None


def _pattern(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression over object names."""
    result = ""
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[[^]]+\]|.", glob, re.DOTALL):
        known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        if part in known:
            result += known[part]
        elif len(part) > 1:
            result += "[" + part[1:-1].replace("\\", r"\\").replace("!", "^", part[1] == "!") + "]"
        else:
            result += re.escape(part)
    return re.compile(result)
