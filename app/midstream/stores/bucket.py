"""Objects of a bucket, read and written from this machine, with the app's errors."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from midstream.errors import MidstreamError
from midstream.stores.bucket_access import Access
from midstream_core import records
from midstream_core.object_store.bucket_client import StoredObject
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.open_bucket import open_bucket
from midstream_host.bucket import tree


@contextlib.contextmanager
def app_errors() -> Generator[None, None, None]:
    """Raise MidstreamError, with its hint, instead of StoreError."""
    try:
        yield
    except StoreError as error:
        raise MidstreamError(error.message, error.hint) from None


class Bucket:
    """The objects below a bucket's URL.

    All methods raise MidstreamError if the service rejects a request.
    """

    def __init__(self, url: str, access: Access | None = None) -> None:
        self.url = url.rstrip("/")
        with app_errors():
            self._client = open_bucket(self.url, access)

    def names(self, below: str = "") -> dict[str, StoredObject]:
        """List objects by path relative to the prefix."""
        with app_errors():
            return self._client.entries(below)

    def get(self, path: str) -> bytes | None:
        """Return an object's bytes, None if it does not exist."""
        with app_errors(), contextlib.suppress(FileNotFoundError):
            return self._client.get(path)[0]
        return None

    def put(self, path: str, data: bytes) -> None:
        """Create an object, or replace the one that exists."""
        with app_errors():
            self._client.put(path, data)

    def delete(self, path: str) -> None:
        """Delete an object if it exists, whatever its version."""
        with app_errors():
            self._client.delete(path)

    def delete_listed(self, listed: StoredObject) -> None:
        """Delete an object if it still is of the version that `names` listed."""
        with app_errors():
            self._client.delete(listed.path, listed.version)

    def check(self, entry: records.ObjectEntry, listed: StoredObject | None) -> str:
        """Read an object and compare it with a manifest's entry.

        Returns:
            What is wrong, in one line; empty if nothing is. ``listed`` is the object as `names` listed it.
        """
        with app_errors():
            listed = listed or self._client.look(entry.path)  # a listing may be behind
            if listed is None:
                return "missing"
            if listed.size != entry.size:
                return f"{listed.size} bytes, the manifest says {entry.size}"
            item = tree.CopyObject(path=entry.path, size=entry.size, sha256=entry.sha256)
            return tree.flaw(self._client, item) or ""
