"""The directory of token caches, found by content or by request.

The request is the one that a cache was built for.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty, str_of
from midstream_engine.config.data import DataConfig
from midstream_engine.data import remote_cache
from midstream_engine.data.block_cache import BlockCache
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import Tokenizer

log = logging.getLogger(__name__)
BLOCKS = ".blocks"  # under the data directory: the block cache of remote token caches


def data_root(root: str) -> str:
    """Return the directory of a host's token caches."""
    return os.path.join(root, "data")


def request_of(what: Sequence[JsonValue], config: DataConfig, tokenizer: Tokenizer) -> str:
    """Return the name of a request for tokens of listed files, or of URLs as written."""
    request = {
        "sources": list(what), "tokenizer": tokenizer.id, "max_bytes": config.max_bytes, "text_key": config.text_key,
    }  # fmt: skip
    return hashlib.sha256(records.canonical_json(request)).hexdigest()


class CacheDirectory:
    """Token caches of this host and those under ``data.cache_dir``.

    Each of both places has an index of requests.
    """

    def __init__(self, root: str, config: DataConfig) -> None:
        self.path = data_root(root)
        self._remote: remote_cache.RemoteCache | None = None
        if remote_cache.is_remote(config.cache_dir):
            assert config.cache_dir is not None
            blocks = BlockCache(os.path.join(self.path, BLOCKS), config.block_cache_bytes)
            self._remote = remote_cache.RemoteCache(config.cache_dir, blocks)

    def find(self, digest: str) -> TokenCache | None:
        """Return the cache with that digest, None if there is none."""
        directory = os.path.join(self.path, digest)
        if os.path.exists(os.path.join(directory, records.MANIFEST)):
            return TokenCache(directory)
        return self._remote.find(digest) if self._remote else None

    def find_request(self, request: str, expected_digest: str | None) -> TokenCache | None:
        """Return the cache built for a request; None where it has another digest.

        Raises:
            DataError: The cache has a token id beyond its vocabulary.
        """
        index = object_or_empty(records.read_json_or_none(self._index(request)))
        cache = self._acceptable(str_of(index["digest"]) if index else None, expected_digest)
        if index and cache is not None and cache.local and not index.get("ids_checked"):
            log.info("%s: checking the token ids, once", cache.directory)
            cache.check_ids()
            self.remember(cache, request)
        if cache is None and self._remote:
            cache = self._acceptable(self._remote.digest_of(request), expected_digest)
        return cache

    def find_remote_request(self, request: str, expected_digest: str | None) -> TokenCache | None:
        """Return another host's cache under ``data.cache_dir`` for the same URLs."""
        return self._acceptable(self._remote.digest_of(request), expected_digest) if self._remote else None

    def _acceptable(self, digest: str | None, expected_digest: str | None) -> TokenCache | None:
        return None if digest is None or expected_digest not in (None, digest) else self.find(digest)

    def remember(self, built: TokenCache, request: str) -> None:
        """Record the request of a built cache, and that its token ids were checked."""
        os.makedirs(os.path.dirname(self._index(request)), exist_ok=True)
        records.write_json(self._index(request), {"digest": built.digest, "ids_checked": True})

    def share(self, cache: TokenCache, requests: list[str]) -> TokenCache:
        """Store a cache of this host under ``data.cache_dir``; log a failed write."""
        if self._remote is not None and cache.local:
            if self._remote.server.writable:
                self._remote.publish(cache, requests)
            else:
                log.info("%s is stored on this host alone: %s is read-only", cache.directory, self._remote.url)
        return cache

    def _index(self, request: str) -> str:
        return os.path.join(self.path, ".requests", request + ".json")
