"""Files in a Google Cloud Storage bucket, through the package google-cloud-storage."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator
from typing import IO, Any

from midstream_engine.data.errors import DataError, NotThere
from midstream_engine.data.sources.source_file import Source
from midstream_engine.requester_pays import user_project

CHUNK = 8 << 20  # bytes of one request
_LOGIN = "run: gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"


def list_objects(url: str) -> list[Source]:
    """The objects that ``gs://bucket/name`` names, sorted; ``*`` stays within a folder, ``**`` does not."""
    bucket, pattern = _split(url)
    literal = re.match(r"[^*?\[]*", pattern)
    assert literal is not None
    matches = _pattern(pattern)
    with _errors(url):
        found = [
            Source(f"gs://{bucket}/{blob.name}", blob.name.rpartition("/")[2], blob.size, str(blob.generation))
            for blob in _client().list_blobs(_bucket(url), prefix=literal[0])
            if matches.fullmatch(blob.name)
        ]
    return sorted(found, key=lambda source: source.path)


@contextlib.contextmanager
def open_object(source: Source) -> Iterator[IO[bytes]]:
    """The object as it was listed (its generation, where one is known), seekable, fetched a chunk at a time."""
    _, name = _split(source.path)
    with _errors(source.path):
        generation = int(source.version) if source.version else None
        blob = _bucket(source.path).blob(name, generation=generation)
        with blob.open("rb", chunk_size=CHUNK) as file:
            yield file


def get(url: str) -> bytes:
    """The whole of a small object. NotThere where there is none."""
    with _errors(url):
        return _blob(url).download_as_bytes()


def create(url: str, path: str, crc32c: str) -> None:
    """Store the file ``path`` under the condition that nothing is there. What is there already has to have that very
    content (``crc32c``, base64), else DataError."""
    from google.api_core.exceptions import PreconditionFailed

    blob = _blob(url)
    with _errors(url, "objectUser"):
        try:
            blob.upload_from_filename(path, "application/octet-stream", if_generation_match=0, checksum="crc32c")
        except PreconditionFailed:
            blob.reload()
            if blob.crc32c != crc32c:
                raise DataError(f"data: {url}: something else is there already; remove it") from None


def put(url: str, data: bytes) -> None:
    """Store a small object in the place of any other."""
    with _errors(url, "objectUser"):
        _blob(url).upload_from_string(data, "application/json")


def _blob(url: str) -> Any:
    return _bucket(url).blob(_split(url)[1])


def _bucket(url: str) -> Any:
    return _client().bucket(_split(url)[0], user_project=user_project(url))


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
def _errors(url: str, role: str = "objectViewer") -> Iterator[None]:
    """The package's errors as one line. Its connection errors are OSErrors already."""
    client = _client()
    from google.api_core.exceptions import Forbidden, GoogleAPICallError, NotFound, RetryError, Unauthorized
    from google.auth.credentials import AnonymousCredentials
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except NotFound as error:
        raise NotThere(f"data: {url}: {_line(error)}") from None
    except (Forbidden, Unauthorized, GoogleAuthError) as error:
        if isinstance(client._credentials, AnonymousCredentials):
            reason = f"not public, and there are no credentials here ({_line(error)}); {_LOGIN}"
        else:
            reason = f"not allowed ({_line(error)}); the account needs roles/storage.{role} there"
        raise DataError(f"data: {url}: {reason}") from None
    except (GoogleAPICallError, RetryError, OSError) as error:
        raise DataError(f"data: {url}: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


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
