"""The google-cloud-storage client for everything in a bucket that is no array: names, manifests, pins, the fence."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from typing import Any

from midstream_engine.checkpoint.errors import CheckpointError
from midstream_engine.requester_pays import user_project

SCHEME = "gs://"


def split(url: str) -> tuple[str, str]:
    """``gs://bucket/a/b`` as bucket and prefix without slashes at its end. CheckpointError for anything else."""
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    if not url.startswith(SCHEME) or not bucket:
        raise CheckpointError(f"{url!r} names no bucket: write gs://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


def client() -> Any:
    """One for the process. With STORAGE_EMULATOR_HOST set it needs no credentials."""
    return _client(os.environ.get("STORAGE_EMULATOR_HOST", ""))


@functools.cache
def _client(endpoint: str) -> Any:
    """The package reads ``endpoint`` from the environment itself; here it tells one from another."""
    try:
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import storage
    except ImportError:
        raise CheckpointError(
            "checkpoints in gs:// need a package that is not installed: pip install google-cloud-storage"
        ) from None
    try:
        return storage.Client()
    except DefaultCredentialsError as error:
        raise CheckpointError(f"no credentials for gs://: {' '.join(str(error).split())}") from None


@contextlib.contextmanager
def errors(what: str) -> Iterator[None]:
    """The client's errors as FileNotFoundError, FileExistsError (a precondition did not hold) or CheckpointError."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except exceptions.NotFound as error:
        raise FileNotFoundError(f"{what}: {error.message}") from error
    except exceptions.PreconditionFailed as error:
        raise FileExistsError(f"{what}: {error.message}") from error
    except exceptions.Forbidden as error:
        raise CheckpointError(
            f"{what}: not allowed ({error.message}); the account needs roles/storage.objectUser there"
        ) from error
    except (exceptions.GoogleAPIError, GoogleAuthError, RequestException) as error:
        raise CheckpointError(f"{what}: {' '.join(str(error).split())[:300]}") from error


def bucket(url: str) -> Any:
    """The bucket of ``url``, whoever pays for what is asked of it; nothing is asked yet."""
    return client().bucket(split(url)[0], user_project=user_project(url))


def blob(url: str, path: str = "") -> Any:
    """The object ``path`` under the prefix ``url``; nothing is asked of the bucket yet."""
    return bucket(url).blob("/".join(part for part in (split(url)[1], path) if part))


def get(url: str, path: str) -> tuple[bytes, int]:
    """An object and its generation. FileNotFoundError where there is none."""
    found = blob(url, path)
    with errors(f"{url}/{path}"):
        data = found.download_as_bytes()
    return data, int(found.generation)


def put(url: str, path: str, data: bytes, generation: int | None) -> None:
    """Create an object (``generation`` 0), replace the one of a generation, or whatever is there (None).

    FileExistsError where another is there. An answer that was lost does not make a success a failure: the client tries
    again, and what then is there already has these very bytes.
    """
    try:
        with errors(f"{url}/{path}"):
            blob(url, path).upload_from_string(data, "application/json", if_generation_match=generation)
    except FileExistsError:
        with contextlib.suppress(FileNotFoundError):
            if get(url, path)[0] == data:
                return
        raise


def entries(url: str, path: str = "") -> dict[str, Any]:
    """All objects below ``url`` (and below ``path`` there), by path relative to ``url``: with size, crc32c, generation
    and time."""
    _, prefix = split(url)
    start = f"{prefix}/" if prefix else ""
    with errors(url):
        return {found.name[len(start) :]: found for found in client().list_blobs(bucket(url), prefix=start + path)}


def folders(url: str) -> list[str]:
    """Names of the folders right below ``url``."""
    _, prefix = split(url)
    start = f"{prefix}/" if prefix else ""
    with errors(url):
        listing = client().list_blobs(bucket(url), prefix=start, delimiter="/")
        for _ in listing:  # prefixes come with the pages
            continue
        return sorted(found[len(start) :].rstrip("/") for found in listing.prefixes)


def delete(url: str, path: str, generation: int | None = None) -> None:
    """Delete an object (of one generation, where it is given); one that is gone is no error."""
    with contextlib.suppress(FileNotFoundError), errors(f"{url}/{path}"):
        blob(url, path).delete(if_generation_match=generation)
