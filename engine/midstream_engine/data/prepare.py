"""From the configuration to token caches, without tokenizing twice."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import time
from collections.abc import Sequence

from midstream_engine import records
from midstream_engine.config.data import DataConfig
from midstream_engine.data import cache, sources
from midstream_engine.data.errors import DataError
from midstream_engine.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def data_root(root: str) -> str:
    """Where a host keeps its token caches."""
    return os.path.join(root, "data")


def open_cache(
    root: str, urls: Sequence[str], config: DataConfig, tokenizer: Tokenizer, *, wanted: str | None = None
) -> cache.TokenCache:
    """The tokens of ``urls``: from the cache where one was built of the same files, else built now.

    ``wanted`` is the digest that a checkpoint names: a cache of that digest is used as it is, whatever the urls hold
    today; where there is none, the urls must still give exactly that content, else DataError.
    """
    place = data_root(root)
    if wanted is not None and os.path.exists(os.path.join(place, wanted, records.MANIFEST)):
        found = cache.TokenCache(os.path.join(place, wanted))
        if found.tokenizer != tokenizer.id:
            raise DataError(f"data.tokenizer: {tokenizer.id} is not the run's, which is {found.tokenizer}")
        return found
    if not urls:
        raise DataError("data.train_urls is empty: name files, or stdlib:**/*.py to try things")
    listed = sources.list_sources(urls)
    request = {
        "sources": [dataclasses.astuple(source) for source in listed],
        "tokenizer": tokenizer.id,
        "max_bytes": config.max_bytes,
        "text_key": config.text_key,
    }
    index = os.path.join(place, ".requests", hashlib.sha256(records.canonical_json(request)).hexdigest() + ".json")
    known = records.read_json_or_none(index)
    if known is not None and wanted in (None, known["digest"]):
        directory = os.path.join(place, known["digest"])
        if os.path.exists(os.path.join(directory, records.MANIFEST)):
            return cache.TokenCache(directory)
    began = time.monotonic()
    texts = sources.documents(listed, text_key=config.text_key, max_bytes=config.max_bytes)
    built = cache.build(place, texts, tokenizer)
    log.info(
        "tokenized %d documents, %d tokens in %.1f s: %s",
        built.documents, built.tokens, time.monotonic() - began, built.directory,
    )  # fmt: skip
    if wanted is not None and built.digest != wanted:
        raise DataError(
            f"data: the run trains on tokens {wanted[:12]}, the urls here give {built.digest[:12]}; "
            f"copy {os.path.join(place, wanted)} from the host that the run comes from"
        )
    os.makedirs(os.path.dirname(index), exist_ok=True)
    records.write_json(index, {"digest": built.digest})
    return built
