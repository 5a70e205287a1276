"""Files in a Google Cloud Storage bucket, through the package google-cloud-storage."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import IO, Any

from midstream_engine.data.errors import DataError
from midstream_engine.data.source import Source

CHUNK = 8 << 20  # bytes of one request


def list_objects(url: str) -> list[Source]:
    """The objects that ``gs://bucket/name`` names, sorted; ``*`` stays within a folder, ``**`` does not."""
    bucket, pattern = _split(url)
    literal = re.match(r"[^*?\[]*", pattern)
    assert literal is not None
    matches = _pattern(pattern)
    with _errors(url):
        found = [
            Source(f"gs://{bucket}/{blob.name}", blob.name.rpartition("/")[2], blob.size, str(blob.generation))
            for blob in _client().list_blobs(bucket, prefix=literal[0])
            if matches.fullmatch(blob.name)
        ]
    return sorted(found, key=lambda source: source.path)


@contextlib.contextmanager
def open_object(source: Source) -> Iterator[IO[bytes]]:
    """The object as it was listed (its generation), seekable, fetched a chunk at a time."""
    bucket, name = _split(source.path)
    with _errors(source.path):
        blob = _client().bucket(bucket).blob(name, generation=int(source.version))
        with blob.open("rb", chunk_size=CHUNK) as file:
            yield file


def _split(url: str) -> tuple[str, str]:
    bucket, _, name = url.removeprefix("gs://").partition("/")
    if not (bucket and name):
        raise DataError(f"data: {url!r}: write gs://bucket/name")
    return bucket, name


@functools.cache
def _client() -> Any:
    try:
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
    except ImportError:
        raise DataError("data: gs:// needs a package: pip install google-cloud-storage") from None
    try:
        return storage.Client()
    except (DefaultCredentialsError, OSError):  # no credentials, or none with a project: public buckets can be read
        return storage.Client.create_anonymous_client()


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    """The package's errors as one line. Its connection errors are OSErrors already."""
    _client()
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPICallError, RetryError, GoogleAuthError, OSError) as error:
        raise DataError(f"data: {url}: {' '.join(str(error).split())}") from None


def _pattern(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression over whole object names."""
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
