"""Text files in buckets."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from typing import IO, cast

from midstream_core.object_store.bucket_client import BucketClient, ObjectFile
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import engine_bucket
from midstream_core.object_store.urls import split_url
from midstream_engine.data.errors import DataError, SourceNotFoundError
from midstream_engine.data.sources.source_file import SourceFile

READ_SIZE = 8 << 20  # bytes of one request of a file


def list_objects(url: str) -> list[SourceFile]:
    """Return the objects that a URL matches, sorted.

    ``*`` stays within a folder, ``**`` does not.
    """
    with _errors(url):
        client, pattern = _split(url)
        literal = re.match(r"[^*?\[]*", pattern)
        assert literal is not None
        matches = _pattern(pattern)
        sources = [
            SourceFile(f"{client.url}/{path}", path.rpartition("/")[2], entry.size, entry.version)
            for path, entry in client.entries(literal[0]).items()
            if matches.fullmatch(path) and not path.endswith("/")  # a marker of a folder
        ]
    return sorted(sources, key=lambda source: source.path)


@contextlib.contextmanager
def open_object(source: SourceFile) -> Iterator[IO[bytes]]:
    """Open an object as a seekable file, in the version that was listed, if known."""
    with _errors(source.path):
        client, name = _split(source.path)
        size = source.size
        if size < 0:
            entry = client.look(name)
            if entry is None:
                raise FileNotFoundError(name)
            size = entry.size
        with io.BufferedReader(ObjectFile(client, name, size, source.version or None), READ_SIZE) as file:
            yield cast(IO[bytes], file)


def get(url: str) -> bytes:
    """Return the bytes of a small object.

    Raises:
        SourceNotFoundError: There is no such object.
    """
    with _errors(url):
        client, name = _split(url)
        return client.get(name)[0]


def create(url: str, path: str, sha256: str) -> None:
    """Create an object from the file ``path``.

    An existing object must have the given hash, as the file has.

    Raises:
        DataError: Another object has that name.
    """
    with _errors(url):
        client, name = _split(url)
        try:
            client.put_file(name, path, sha256)
        except ObjectExistsError:
            raise DataError(f"data: {url}: another object has this name (hint: remove it)") from None


def put(url: str, data: bytes) -> None:
    """Write a small object; it replaces an existing one."""
    with _errors(url):
        client, name = _split(url)
        client.put(name, data)


def _split(url: str) -> tuple[BucketClient, str]:
    """Return the client of a URL's bucket, and the object's name.

    Raises StoreError, DataError.
    """
    scheme, bucket, name = split_url(url)
    if not name:
        raise DataError(f"data: {url!r} names no object (hint: write {scheme}BUCKET/NAME)")
    return engine_bucket(scheme + bucket, public=True, settings_of=url), name


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SourceNotFoundError(f"data: {url}: no such object") from None
    except StoreError as error:
        raise DataError(f"data: {error.with_hint()}") from error


def _pattern(glob: str) -> re.Pattern[str]:
    """Return a glob as a regular expression over object names."""
    result = ""
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[[^]]+\]|.", glob, re.DOTALL):
        translations = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
        if token in translations:
            result += translations[token]
        elif len(token) > 1:
            result += "[" + token[1:-1].replace("\\", r"\\").replace("!", "^", token[1] == "!") + "]"
        else:
            result += re.escape(token)
    return re.compile(result)
