"""Objects of a bucket, read and written from this machine, with errors as the app raises them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Generator
from typing import Any

from midstream.errors import MidstreamError
from midstream.remote.gcs import client, tree
from midstream.stores.bucket_access import Access
from midstream_engine import records
from midstream_engine.gcs_errors import GcsError

Blob = Any  # of google-cloud-storage


@contextlib.contextmanager
def app_errors() -> Generator[None, None, None]:
    """Raise MidstreamError, with its hint, instead of GcsError."""
    try:
        yield
    except GcsError as error:
        raise MidstreamError(error.message, error.hint) from None


class Bucket:
    """The objects below ``gs://bucket/prefix``. All methods raise MidstreamError if the service rejects a request."""

    def __init__(self, url: str, access: Access | None = None) -> None:
        self.url = url.rstrip("/")
        with app_errors():
            self._bucket = client.Bucket(self.url, (access or Access()).to_json())

    def names(self, below: str = "") -> dict[str, Blob]:
        """List objects by path relative to the prefix, with size, crc32c, generation and time."""
        with app_errors():
            return self._bucket.names(below)

    def get(self, path: str) -> bytes | None:
        """Return an object's bytes, None if it does not exist."""
        with app_errors(), contextlib.suppress(FileNotFoundError):
            return self._bucket.get(path)
        return None

    def put(self, path: str, data: bytes) -> None:
        """Create an object, or replace the one that exists."""
        with app_errors():
            self._bucket.put(path, data, hashlib.sha256(data).hexdigest())

    def delete(self, path: str) -> None:
        """Delete an object if it exists, whatever its generation."""
        with app_errors():
            self._bucket.delete(self._bucket.blob(path))

    def delete_listed(self, blob: Blob) -> None:
        """Delete an object if it still is of the generation that `names` listed."""
        with app_errors():
            self._bucket.delete(blob)

    def check(self, entry: records.ObjectEntry, blob: Blob | None) -> str:
        """Read an object and compare it with a manifest's entry.

        Returns:
            What is wrong, in one line; empty if nothing is. ``blob`` is the object as `names` listed it.
        """
        if blob is None:
            return "missing"
        if blob.size != entry.size:
            return f"{blob.size} bytes, the manifest says {entry.size}"
        with app_errors():
            return tree.flaw(self._bucket, {"path": entry.path, "size": entry.size, "sha256": entry.sha256}) or ""
