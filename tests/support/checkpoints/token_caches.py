"""Token caches of a few texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from midstream_engine.data.token_cache import OBJECT_BYTES, TokenCache, build_from_tokens
from midstream_engine.data.tokenize.tokenizer import Tokenizer


def build(data_root: str, texts: Iterable[bytes], tokenizer: Tokenizer, object_bytes: int = OBJECT_BYTES) -> TokenCache:
    """Tokenize ``texts`` into a cache under ``data_root``; each document ends with EOS."""
    documents = (np.append(tokenizer.encode(text), tokenizer.eos) for text in texts)
    return build_from_tokens(data_root, ((ids, np.asarray([len(ids)])) for ids in documents), tokenizer, object_bytes)
