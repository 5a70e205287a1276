"""Token caches under ``gs://bucket/prefix``, or behind http(s) to be read alone: ``data.cache_dir``.

They have the layout of a host's data directory. What is written lies there with its manifest last, each object under
the condition that it is not there yet: a cache is whole or absent, whoever else writes it.
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

from midstream_engine import records
from midstream_engine.data.cache.block_cache import BlockCache
from midstream_engine.data.cache.token_cache import Objects, TokenCache
from midstream_engine.data.errors import DataError, NotThere
from midstream_engine.data.sources import gcs, http
from midstream_engine.data.sources.source_file import Source
from midstream_engine.records import MANIFEST, ObjectEntry

log = logging.getLogger(__name__)
UPLOADS = 4  # objects at a time
SCHEMES = ("gs://", "https://", "http://")


class Server(Protocol):
    """What holds objects. Every url is whole; errors are DataError."""

    writable: bool

    def get(self, url: str) -> bytes:
        """A small object. NotThere where there is none."""
        ...

    def open(self, url: str, size: int) -> Any:
        """A context manager that gives the bytes of a large object as a file."""
        ...

    def create(self, url: str, path: str, crc32c: str) -> None:
        """Store the file ``path``, whose crc32c is given, unless that very content is there."""
        ...

    def put(self, url: str, data: bytes) -> None:
        """Store a small object in the place of any other."""
        ...


class Bucket:
    """A Google Cloud Storage bucket."""

    writable = True
    get = staticmethod(gcs.get)
    create = staticmethod(gcs.create)
    put = staticmethod(gcs.put)

    @contextmanager
    def open(self, url: str, size: int) -> Iterator[IO[bytes]]:
        with gcs.open_object(Source(url, "", size, "")) as file:
            yield file


class Web:
    """A file server."""

    writable = False
    get = staticmethod(http.get)

    @contextmanager
    def open(self, url: str, size: int) -> Iterator[IO[bytes]]:
        with http.open_stream(Source(url, "", size, "")) as file:
            yield file

    def create(self, url: str, path: str, crc32c: str) -> None:
        raise DataError(f"data.cache_dir: {url}: nothing can be written there")

    def put(self, url: str, data: bytes) -> None:
        raise DataError(f"data.cache_dir: {url}: nothing can be written there")


class Remote:
    """The token caches under ``url``, read through ``blocks``."""

    def __init__(self, url: str, blocks: BlockCache):
        self.url = url.rstrip("/")
        self.blocks = blocks
        self.server: Server = Bucket() if url.startswith("gs://") else Web()

    def known(self, request: str) -> str | None:
        """The digest of the cache that was built for ``request``."""
        try:
            data = self.server.get(f"{self.url}/.requests/{request}.json")
        except NotThere:
            return None
        try:
            return str(json.loads(data)["digest"])
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{self.url}/.requests/{request}.json: not a record of a token cache; remove it") from None

    def find(self, digest: str) -> TokenCache | None:
        """The cache ``digest``; None where it is not there. DataError where its manifest is not that of ``digest``."""
        try:
            return TokenCache(RemoteObjects(self, digest))
        except NotThere:
            return None

    def publish(self, cache: TokenCache, requests: list[str]) -> None:
        """Store a cache of this host's unless it is there, and what it was built for."""
        place = f"{self.url}/{cache.digest}"
        if self.find(cache.digest) is None:
            entries = [ObjectEntry(**entry) for entry in cache.manifest["objects"]]
            log.info("storing %.1f MB of tokens in %s", sum(entry.size for entry in entries) / 1e6, place)
            with ThreadPoolExecutor(UPLOADS, "upload") as pool:
                for done in [
                    pool.submit(
                        self.server.create,
                        f"{place}/{entry.path}",
                        os.path.join(cache.directory, entry.path),
                        entry.crc32c or "",
                    )
                    for entry in entries
                ]:
                    done.result()
            with open(os.path.join(cache.directory, MANIFEST), "rb") as file:
                self.server.put(f"{place}/{MANIFEST}", file.read())
        for request in requests:
            if self.known(request) != cache.digest:
                self.server.put(
                    f"{self.url}/.requests/{request}.json", records.canonical_json({"digest": cache.digest})
                )


class RemoteObjects(Objects):
    """The objects of one cache, fetched when they are asked for."""

    def __init__(self, remote: Remote, digest: str):
        self._remote = remote
        self._digest = digest
        self.directory = f"{remote.url}/{digest}"

    def manifest(self) -> dict[str, Any]:
        data = self._remote.server.get(f"{self.directory}/{MANIFEST}")
        try:
            manifest = json.loads(data)
            told = {key: value for key, value in manifest.items() if key != "digest"}
            named = [str(entry["path"]) for entry in manifest["objects"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{self.directory}/{MANIFEST}: not the manifest of a token cache") from None
        if hashlib.sha256(records.canonical_json(told)).hexdigest() != self._digest:
            raise DataError(f"{self.directory}/{MANIFEST}: is not the manifest of the cache of that name")
        if not all(map(records.safe_relative, named)):
            raise DataError(f"{self.directory}/{MANIFEST}: names an object outside of its directory")
        return manifest

    def read(self, entry: ObjectEntry) -> Any:
        return self._remote.blocks.get(*self._wanted(entry))

    def bring(self, entries: list[ObjectEntry]) -> None:
        self._remote.blocks.get_all([self._wanted(entry) for entry in entries])

    def _wanted(self, entry: ObjectEntry) -> Any:
        url = f"{self.directory}/{entry.path}"
        return entry, lambda: self._remote.server.open(url, entry.size), url


def is_remote(place: str | None) -> bool:
    """Whether ``data.cache_dir`` names a bucket or a server."""
    return place is not None and place.startswith(SCHEMES)
