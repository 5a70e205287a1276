"""A run's manifests, pins and fence in its bucket, with errors of checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from midstream_core.attempt.errors import CheckpointError
from midstream_core.object_store.bucket_client import BucketClient, StoredObject
from midstream_core.object_store.errors import ObjectExistsError, StoreError
from midstream_core.object_store.open_bucket import engine_bucket


@contextlib.contextmanager
def checkpoint_errors() -> Generator[None, None, None]:
    """Raise a bucket's failures as checkpoint errors.

    FileExistsError for a condition that failed, and CheckpointError for any other failure of a bucket.
    """
    try:
        yield
    except ObjectExistsError as error:
        raise FileExistsError(error.message) from error
    except StoreError as error:
        raise CheckpointError(error.with_hint()) from error


class RunBucket:
    """The objects below a URL.

    Raises FileNotFoundError for a missing object; other errors as of `checkpoint_errors`.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    @property
    def client(self) -> BucketClient:
        """The client, which is opened when it is first needed."""
        return engine_bucket(self.url)

    def get(self, path: str) -> tuple[bytes, str]:
        """Return the bytes of an object and its version."""
        with checkpoint_errors():
            return self.client.get(path)

    def look(self, path: str) -> StoredObject | None:
        """Return an object's description; None where there is none."""
        with checkpoint_errors():
            return self.client.look(path)

    def put(self, path: str, data: bytes, replaces: str | None) -> None:
        """Create or replace an object.

        ``replaces``: ABSENT to create it, a version to replace that one, None to replace whatever exists.
        """
        with checkpoint_errors():
            self.client.put(path, data, replaces=replaces)

    def entries(self, below: str = "") -> dict[str, StoredObject]:
        """Return all objects whose relative path begins with ``below``, by relative path."""
        with checkpoint_errors():
            return self.client.entries(below)

    def folders(self) -> list[str]:
        """Return the names of the folders directly below the URL."""
        with checkpoint_errors():
            return self.client.folders()

    def delete(self, path: str, version: str | None = None) -> None:
        """Delete an object, or one version of it. A missing object is no error."""
        with checkpoint_errors():
            self.client.delete(path, version)
