"""Clients of buckets, by URL."""

from __future__ import annotations

import os
import threading

from midstream_core.object_store.access import Access, engine_access
from midstream_core.object_store.bucket_client import BucketClient
from midstream_core.object_store.urls import GCS, split_url

# Environment variables that a client reads when it is opened.
READ = ("STORAGE_EMULATOR_HOST", "GOOGLE_", "AWS_", "MIDSTREAM_STORES")
MAX_CLIENTS = 64  # clients that stay open

_opened: dict[tuple[str, Access, tuple[tuple[str, str], ...]], BucketClient] = {}
_opening = threading.Lock()


def open_bucket(url: str, access: Access | None = None) -> BucketClient:
    """Return the client of ``url``, which connects with its first request.

    Raises:
        StoreError: The URL names no bucket, the service's package is not installed, or there are no credentials.
    """
    scheme, _, _ = split_url(url)
    if scheme == GCS:
        from midstream_core.object_store.gcs_client import GcsClient

        return GcsClient(url, access or Access())
    from midstream_core.object_store.s3_client import S3Client

    return S3Client(url, access or Access())


def prepare_client(scheme: str) -> None:
    """Import what a client needs.

    The import is most of the time until the first request of a new process.

    Raises ImportError and the errors of the service's package.
    """
    if scheme == GCS:
        from midstream_core.object_store.gcs_session import prepare_storage

        prepare_storage()
    else:
        from midstream_core.object_store.s3_session import prepare_session

        prepare_session()


def engine_bucket(url: str, *, public: bool = False, settings_of: str = "") -> BucketClient:
    """Return the engine's client of ``url``.

    A process has one client for each URL and environment. Raises as `open_bucket`.

    Args:
        url: The bucket's, or that of a prefix.
        public: Whether to read without credentials if there are none.
        settings_of: The URL whose settings are used, if it is another one.
    """
    environment = tuple(sorted((key, value) for key, value in os.environ.items() if key.startswith(READ)))
    key = url.rstrip("/"), engine_access(settings_of or url, public=public), environment
    with _opening:
        if key not in _opened:
            if len(_opened) >= MAX_CLIENTS:
                _opened.pop(next(iter(_opened)))
            _opened[key] = open_bucket(url, key[1])
        return _opened[key]


def close_clients() -> None:
    """Close the connections of all clients that `engine_bucket` has returned."""
    with _opening:
        for client in _opened.values():
            client.__exit__(None, None, None)
        _opened.clear()
