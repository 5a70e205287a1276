"""Where token caches lie, and how one is found again: by its content, or by what it was built for."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from midstream_engine import records
from midstream_engine.config.data import DataConfig
from midstream_engine.data.cache import remote_cache
from midstream_engine.data.cache.block_cache import BlockCache
from midstream_engine.data.cache.token_cache import TokenCache
from midstream_engine.data.tokenize.tokenizer import Tokenizer

log = logging.getLogger(__name__)
BLOCKS = ".blocks"  # under the data directory: what was read from elsewhere


def data_root(root: str) -> str:
    """Where a host keeps its token caches."""
    return os.path.join(root, "data")


def request_of(what: Sequence[Any], config: DataConfig, tokenizer: Tokenizer) -> str:
    """The name of a request for tokens: of files as they were listed, or of urls as they were written."""
    request = {
        "sources": list(what), "tokenizer": tokenizer.id, "max_bytes": config.max_bytes, "text_key": config.text_key,
    }  # fmt: skip
    return hashlib.sha256(records.canonical_json(request)).hexdigest()


class CacheDirectory:
    """Token caches of this host, and those under ``data.cache_dir``; each with an index of what it was built for."""

    def __init__(self, root: str, config: DataConfig):
        self.place = data_root(root)
        self._remote: remote_cache.Remote | None = None
        if remote_cache.is_remote(config.cache_dir):
            assert config.cache_dir is not None
            blocks = BlockCache(os.path.join(self.place, BLOCKS), config.block_cache_bytes)
            self._remote = remote_cache.Remote(config.cache_dir, blocks)

    def find(self, digest: str) -> TokenCache | None:
        """The cache of that content."""
        directory = os.path.join(self.place, digest)
        if os.path.exists(os.path.join(directory, records.MANIFEST)):
            return TokenCache(directory)
        return self._remote.find(digest) if self._remote else None

    def known(self, request: str, wanted: str | None) -> TokenCache | None:
        """What was built for a request, unless it is not ``wanted``."""
        here = records.read_json_or_none(self._index(request))
        found = self._acceptable(here["digest"] if here else None, wanted)
        if found is None and self._remote:
            found = self._acceptable(self._remote.known(request), wanted)
        return found

    def known_elsewhere(self, asked: str, wanted: str | None) -> TokenCache | None:
        """What was built under ``data.cache_dir`` for the same urls by a host that could read them."""
        return self._acceptable(self._remote.known(asked), wanted) if self._remote else None

    def _acceptable(self, digest: str | None, wanted: str | None) -> TokenCache | None:
        return None if digest is None or wanted not in (None, digest) else self.find(digest)

    def remember(self, built: TokenCache, request: str) -> None:
        """Write down what a cache was built for."""
        os.makedirs(os.path.dirname(self._index(request)), exist_ok=True)
        records.write_json(self._index(request), {"digest": built.digest})

    def share(self, found: TokenCache, requests: list[str]) -> TokenCache:
        """Store a cache of this host where others find it. What cannot be written to is only said."""
        if self._remote is not None and found.local:
            if self._remote.server.writable:
                self._remote.publish(found, requests)
            else:
                log.info("%s is on this host alone: nothing can be written to %s", found.directory, self._remote.url)
        return found

    def _index(self, request: str) -> str:
        return os.path.join(self.place, ".requests", request + ".json")
