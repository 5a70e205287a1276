"""Token caches in a bucket, or read-only behind http(s): ``data.cache_dir``.

The layout is that of a host's data directory. Each object is created under the condition that it does not exist, and
the manifest is written last: a cache is complete or absent, even if several hosts write it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, Any, Protocol

from midstream_core import records
from midstream_core.object_store import urls
from midstream_core.records import MANIFEST, ObjectEntry
from midstream_engine.data.block_cache import BlockCache
from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError, SourceNotFoundError
from midstream_engine.data.sources import bucket, http
from midstream_engine.data.sources.source_file import SourceFile
from midstream_engine.data.token_cache import CacheObjects, TokenCache

log = logging.getLogger(__name__)
UPLOADS = 4  # objects at a time
SCHEMES = (*urls.SCHEMES, "https://", "http://")


class Server(Protocol):
    """A bucket or file server. URLs are absolute; every error is a DataError."""

    writable: bool

    def get(self, url: str) -> bytes:
        """Return a small object.

        Raises:
            SourceNotFoundError: There is no such object.
        """
        ...

    def open(self, url: str, size: int) -> Any:
        """Context manager: a large object as a file."""
        ...

    def create(self, url: str, path: str, sha256: str) -> None:
        """Store the file ``path``, unless an object with the same content exists.

        The file has the given SHA-256.
        """
        ...

    def put(self, url: str, data: bytes) -> None:
        """Write a small object; it replaces an existing one."""
        ...


class BucketServer:
    """A bucket."""

    writable = True
    get = staticmethod(bucket.get)
    create = staticmethod(bucket.create)
    put = staticmethod(bucket.put)

    @contextmanager
    def open(self, url: str, size: int) -> Iterator[IO[bytes]]:
        """Context manager: a large object as a file."""
        with bucket.open_object(SourceFile(url, "", size, "")) as file:
            yield file


class FileServer:
    """A file server."""

    writable = False
    get = staticmethod(http.get)

    @contextmanager
    def open(self, url: str, size: int) -> Iterator[IO[bytes]]:
        """Context manager: a large object as a file."""
        with http.open_stream(SourceFile(url, "", size, "")) as file:
            yield file

    def create(self, url: str, path: str, sha256: str) -> None:
        """Raise DataError: a file server is read-only."""
        del path, sha256
        raise DataError(f"data.cache_dir: {url}: a file server is read-only")

    def put(self, url: str, data: bytes) -> None:
        """Raise DataError: a file server is read-only."""
        del data
        raise DataError(f"data.cache_dir: {url}: a file server is read-only")


class RemoteCache:
    """The token caches under ``url``, read through ``blocks``."""

    def __init__(self, url: str, blocks: BlockCache) -> None:
        self.url = url.rstrip("/")
        self.blocks = blocks
        self.server: Server = BucketServer() if urls.in_bucket(url) else FileServer()

    def digest_of(self, request: str) -> str | None:
        """Return the digest of the cache built for ``request``, None if there is none."""
        try:
            data = self.server.get(f"{self.url}/.requests/{request}.json")
        except SourceNotFoundError:
            return None
        try:
            return str(json.loads(data)["digest"])
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{self.url}/.requests/{request}.json: not a record of a token cache (hint: remove it)"
            ) from None

    def find(self, digest: str) -> TokenCache | None:
        """Return the cache ``digest``, None if there is none.

        Raises:
            DataError: Its manifest is not that of ``digest``.
        """
        try:
            return TokenCache(RemoteObjects(self, digest))
        except SourceNotFoundError:
            return None

    def publish(self, cache: TokenCache, requests: list[str]) -> None:
        """Store a cache of this host, unless it exists, and record its requests.

        The requests are those that it was built for.
        """
        url = f"{self.url}/{cache.digest}"
        if self.find(cache.digest) is None:
            entries = [ObjectEntry(**entry) for entry in cache.manifest["objects"]]
            log.info("storing %.1f MB of tokens in %s", sum(entry.size for entry in entries) / 1e6, url)
            with ThreadPoolExecutor(UPLOADS, "upload") as pool:
                for done in [
                    pool.submit(
                        self.server.create,
                        f"{url}/{entry.path}",
                        os.path.join(cache.directory, entry.path),
                        entry.sha256,
                    )
                    for entry in entries
                ]:
                    done.result()
            with open(os.path.join(cache.directory, MANIFEST), "rb") as file:
                self.server.put(f"{url}/{MANIFEST}", file.read())
        for request in requests:
            if self.digest_of(request) != cache.digest:
                self.server.put(
                    f"{self.url}/.requests/{request}.json", records.canonical_json({"digest": cache.digest})
                )


class RemoteObjects(CacheObjects):
    """The objects of one remote cache, fetched on demand."""

    def __init__(self, remote: RemoteCache, digest: str) -> None:
        self._remote = remote
        self._digest = digest
        self.directory = f"{remote.url}/{digest}"

    def manifest(self) -> DataManifest:
        """Return the manifest, after a check that it is that of the digest."""
        data = self._remote.server.get(f"{self.directory}/{MANIFEST}")
        try:
            manifest = json.loads(data)
            described = {key: value for key, value in manifest.items() if key != "digest"}
            named = [str(entry["path"]) for entry in manifest["objects"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{self.directory}/{MANIFEST}: no manifest of a token cache") from None
        if hashlib.sha256(records.canonical_json(described)).hexdigest() != self._digest:
            raise DataError(f"{self.directory}/{MANIFEST}: is not the manifest of the cache of that name")
        if not all(map(records.safe_relative, named)):
            raise DataError(f"{self.directory}/{MANIFEST}: names an object outside of its directory")
        return manifest

    def read(self, entry: ObjectEntry) -> Any:
        """Return the content of an object, uint8 [size]."""
        return self._remote.blocks.get(*self._wanted(entry))

    def prefetch(self, entries: list[ObjectEntry]) -> None:
        """Fetch several objects at a time."""
        self._remote.blocks.get_all([self._wanted(entry) for entry in entries])

    def _wanted(self, entry: ObjectEntry) -> Any:
        url = f"{self.directory}/{entry.path}"
        return entry, lambda: self._remote.server.open(url, entry.size), url


def is_remote(cache_dir: str | None) -> bool:
    """Return whether ``data.cache_dir`` is the URL of a bucket or a server."""
    return cache_dir is not None and cache_dir.startswith(SCHEMES)
