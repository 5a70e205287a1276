"""Objects in Google Cloud Storage buckets, by URL, through the package google-cloud-storage."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

from midstream_engine.gcs_errors import (
    LOGIN,
    AccessDeniedError,
    GcsError,
    ObjectExistsError,
    split_url,
    translate_errors,
)
from midstream_engine.requester_pays import user_project

READ_SIZE = 8 << 20  # bytes of one request of `open`


class GcsClient:
    """Reads and writes objects. A URL is ``gs://bucket/prefix``; paths are relative to it.

    Every method raises FileNotFoundError for a missing object, FileExistsError for a precondition that failed, and the
    client's own error for any other failure.
    """

    def __init__(self, error: Callable[[str], Exception], *, anonymous_fallback: bool = False) -> None:
        """Create a client; it connects at its first request.

        Args:
            error: Makes the exception that is raised for a failed request from its message.
            anonymous_fallback: Read public buckets if there are no credentials.
        """
        self._error, self._anonymous_fallback = error, anonymous_fallback

    def storage(self) -> Any:
        """Return the package's client, one for the process. With STORAGE_EMULATOR_HOST it needs no credentials."""
        try:
            return self._open()[0]
        except GcsError as error:
            raise self._error(error.with_hint()) from None

    def _open(self) -> tuple[Any, bool]:
        return storage_client(os.environ.get("STORAGE_EMULATOR_HOST", ""), self._anonymous_fallback)

    @contextlib.contextmanager
    def errors(self, url: str) -> Iterator[None]:
        """Translate errors of a request for ``url``."""
        self.storage()
        try:
            with translate_errors(url):
                yield
        except ObjectExistsError as error:
            raise FileExistsError(error.message) from error
        except AccessDeniedError as error:
            if self._anonymous_fallback and self._open()[1]:
                text = f"{url}: not public, and there are no credentials here: {error.message} (hint: {LOGIN})"
                raise self._error(text) from error
            raise self._error(error.with_hint()) from error
        except GcsError as error:
            raise self._error(error.with_hint()) from error

    def split(self, url: str) -> tuple[str, str]:
        """Return bucket and prefix of a URL, the prefix without slashes at its end."""
        try:
            return split_url(url)
        except GcsError as error:
            raise self._error(error.with_hint()) from None

    def bucket(self, url: str) -> Any:
        """Return the bucket of ``url`` with the project that pays for requests to it. Sends no request."""
        return self.storage().bucket(self.split(url)[0], user_project=user_project(url))

    def blob(self, url: str, path: str = "", generation: int | None = None) -> Any:
        """Return the object ``path`` below ``url``. Sends no request."""
        name = "/".join(part for part in (self.split(url)[1], path) if part)
        return self.bucket(url).blob(name, generation=generation)

    def get(self, url: str, path: str = "") -> tuple[bytes, int]:
        """Return the bytes of a small object and its generation."""
        found = self.blob(url, path)
        with self.errors(_at(url, path)):
            data = found.download_as_bytes()
        return data, int(found.generation)

    @contextlib.contextmanager
    def open(self, url: str, generation: int | None = None) -> Iterator[IO[bytes]]:
        """Open an object (of one generation) as a seekable file that reads ``READ_SIZE`` bytes a request."""
        with self.errors(url), self.blob(url, generation=generation).open("rb", chunk_size=READ_SIZE) as file:
            yield file

    def put(self, url: str, path: str, data: bytes, generation: int | None) -> None:
        """Create an object (``generation`` 0), replace one generation of it, or replace whatever exists (None).

        If the response to a successful request was lost, the client repeats the request and finds these same bytes:
        that is a success.
        """
        try:
            with self.errors(_at(url, path)):
                self.blob(url, path).upload_from_string(data, "application/json", if_generation_match=generation)
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if self.get(url, path)[0] == data:
                    return
            raise

    def create_from_file(self, url: str, file: str, crc32c: str) -> None:
        """Create an object from the file ``file``. An existing object must have that crc32c (base64)."""
        blob = self.blob(url)
        with self.errors(url):
            try:
                with self.errors(url):
                    blob.upload_from_filename(
                        file, "application/octet-stream", if_generation_match=0, checksum="crc32c"
                    )
            except FileExistsError:
                blob.reload()
                if blob.crc32c != crc32c:
                    raise

    def entries(self, url: str, path: str = "") -> dict[str, Any]:
        """Return all objects below ``url`` whose relative path begins with ``path``, by relative path.

        Each has name, size, crc32c, generation and time.
        """
        prefix = self.split(url)[1]
        start = f"{prefix}/" if prefix else ""
        with self.errors(url):
            listing = self.storage().list_blobs(self.bucket(url), prefix=start + path)
            return {found.name[len(start) :]: found for found in listing}

    def folders(self, url: str) -> list[str]:
        """Return the names of the folders directly below ``url``."""
        prefix = self.split(url)[1]
        start = f"{prefix}/" if prefix else ""
        with self.errors(url):
            listing = self.storage().list_blobs(self.bucket(url), prefix=start, delimiter="/")
            for _ in listing:  # prefixes come with the pages
                continue
            return sorted(found[len(start) :].rstrip("/") for found in listing.prefixes)

    def delete(self, url: str, path: str, generation: int | None = None) -> None:
        """Delete an object, or one generation of it. A missing object is no error."""
        with contextlib.suppress(FileNotFoundError), self.errors(_at(url, path)):
            self.blob(url, path).delete(if_generation_match=generation)


def _at(url: str, path: str) -> str:
    return f"{url}/{path}" if path else url


@functools.cache
def storage_client(endpoint: str, anonymous_fallback: bool) -> tuple[Any, bool]:
    """Return a client of google-cloud-storage, and whether it has no credentials.

    Args:
        endpoint: The emulator, which the package reads from its environment and which needs no credentials.
        anonymous_fallback: Return a client without credentials if there are none.

    Raises:
        GcsError: The package is not installed, or there are no credentials.
    """
    try:
        from google.auth.exceptions import DefaultCredentialsError  # loads google-auth, which few runs need
        from google.cloud import storage
    except ImportError:
        raise GcsError("gs:// needs a package that is not installed", "pip install google-cloud-storage") from None
    try:
        return storage.Client(), bool(endpoint)
    except (DefaultCredentialsError, OSError) as error:  # OSError: credentials that name no project
        if anonymous_fallback:
            return storage.Client.create_anonymous_client(), True
        raise GcsError(f"no credentials for gs://: {' '.join(str(error).split())}", LOGIN) from None
