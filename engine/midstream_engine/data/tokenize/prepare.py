"""From the configuration to token caches, without tokenizing twice."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence

from midstream_engine import records
from midstream_engine.config.data import DataConfig, SourceConfig
from midstream_engine.data.cache import token_cache
from midstream_engine.data.cache.cache_directory import CacheDirectory, data_root, request_of
from midstream_engine.data.cache.token_cache import TokenCache
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported.imported_data import SCHEME as IMPORTED
from midstream_engine.data.imported.imported_data import Imported, bring, tokenizer_path
from midstream_engine.data.order import mixture
from midstream_engine.data.order.batches import Validation
from midstream_engine.data.order.mixture import Mixture
from midstream_engine.data.sources import hugging_face_hub, list_sources
from midstream_engine.data.tokenize import tokenize_units, units
from midstream_engine.data.tokenize.tokenizer import Tokenizer
from midstream_engine.data.tokenize.work_directory import working_directory

log = logging.getLogger(__name__)
_NOTHING = "data.train_urls is empty: name files, or stdlib:**/*.py to try things"


def open_training(
    root: str, config: DataConfig, tokenizer: Tokenizer, *, seq_len: int, wanted: str | None = None
) -> TokenCache | Mixture | Imported:
    """What training reads: the tokens of one body of text, or a mixture, or documents packed into ``seq_len``.

    ``wanted`` is the digest that a checkpoint names: see ``open_cache``. Raises DataError also where the configuration
    asks for another order than the one that digest stands for.
    """
    place = data_root(root)
    parts = config.configs or {"": config}
    counts = config.block_counts() if config.configs else {"": 1}
    block = config.mixture_block_size if config.configs else 1
    pack = seq_len if config.pack else None
    if len(urls := training_urls(config)) == 1 and urls[0].startswith(IMPORTED):
        digest = bring(urls[0], place) if wanted is None or not os.path.exists(os.path.join(place, wanted)) else wanted
        if wanted not in (None, digest):
            raise _other_content(place, wanted, digest)
        wanted = digest
    if wanted is not None and os.path.exists(os.path.join(place, wanted, records.MANIFEST)):
        found = mixture.open_data(os.path.join(place, wanted))
        mixture.check_same_order(found, counts, block, pack)
        _check_tokenizer(found, tokenizer)
        return found
    plain = len(counts) == 1 and pack is None
    body_wanted = wanted if plain else None
    opened = {
        name: open_cache(root, training_urls(parts[name]), one_body(config, parts[name]), tokenizer, wanted=body_wanted)
        for name in counts
    }
    if plain:
        return next(iter(opened.values()))
    mixed = mixture.assemble(place, opened, counts, block, pack)
    if wanted is not None and mixed.digest != wanted:
        raise _other_content(place, wanted, mixed.digest)
    return mixed


def open_validation(
    root: str, config: DataConfig, tokenizer: Tokenizer, known: Mapping[str, Mapping[str, str]] | None = None
) -> Validation | None:
    """The validation sets by name (one body of text: the name is empty); None where there are none.

    ``known``: what a checkpoint says of the run's sets (``Validation.to_json``). Where the configuration still asks for
    the same text and that cache is here, it is the set, whatever the urls hold today or whether they can be reached.
    """
    sets, asked = {}, {}
    for name, part in sorted((config.configs or {"": config}).items()):
        urls = validation_urls(part)
        if not urls:
            continue
        body = one_body(config, part)
        asked[name] = request_of(urls, body, tokenizer)
        before = (known or {}).get(name, {})
        place = os.path.join(data_root(root), before.get("digest", ""))
        if before.get("asked") == asked[name] and os.path.exists(os.path.join(place, records.MANIFEST)):
            sets[name] = TokenCache(place)
            continue
        try:
            sets[name] = open_cache(root, urls, body, tokenizer)
        except hugging_face_hub.NoSplit as error:
            log.warning("%s: nothing is evaluated on it; data.validation_urls names other text", error)
    return Validation(sets, asked) if sets else None


def training_urls(part: SourceConfig) -> list[str]:
    """The urls of a body's training text, its dataset among them."""
    return [*part.train_urls, *([hugging_face_hub.dataset_url(part.id, part.name, "train")] if part.id else [])]


def validation_urls(part: SourceConfig) -> list[str]:
    """The same of its validation text. Where urls are given, a dataset's own validation split is left alone."""
    if part.validation_urls or part.id is None:
        return part.validation_urls
    return [hugging_face_hub.dataset_url(part.id, part.name, "validation")]


def open_cache(
    root: str,
    urls: Sequence[str],
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    wanted: str | None = None,
    unit_bytes: int = units.UNIT_BYTES,
    object_bytes: int = token_cache.OBJECT_BYTES,
) -> TokenCache:
    """The tokens of ``urls``: from the cache where one was built of the same files, here or under ``data.cache_dir``,
    else built now, and stored there where that is a bucket.

    ``wanted`` is the digest that a checkpoint names: a cache of that digest is used as it is, whatever the urls hold
    today; where there is none, the urls must still give exactly that content, else DataError. ``unit_bytes``: see
    ``units.cut``. Another program that builds the same is waited for.
    """
    shelf = CacheDirectory(root, config)
    if wanted is not None and (found := shelf.find(wanted)) is not None:
        _check_tokenizer(found, tokenizer)
        return found
    if not urls:
        raise DataError(_NOTHING)
    asked = request_of(urls, config, tokenizer)
    try:
        listed = list_sources.list_sources(urls)
    except DataError as error:
        found = shelf.known_elsewhere(asked, wanted)
        if found is None:
            raise
        log.info("%s; goes on with what was tokenized of the same urls: %s", error, found.directory)
        return found
    request = request_of([dataclasses.astuple(source) for source in listed], config, tokenizer)
    found = shelf.known(request, wanted)
    if found is not None:
        return shelf.share(found, [request, asked])
    with working_directory(shelf.place, f"{request}-{unit_bytes}") as directory:
        found = shelf.known(request, wanted)  # by whom this one waited for
        if found is not None:
            return shelf.share(found, [request, asked])
        began = time.monotonic()
        task = tokenize_units.Task(
            directory, tokenizer, tokenizer_path(config.tokenizer, root), config.eos_token, config.text_key,
            config.max_bytes,
        )  # fmt: skip
        made = tokenize_units.tokenize(units.cut(listed, unit_bytes), task, config.num_tokenize_workers)
        with contextlib.closing(made):
            built = token_cache.build_from_tokens(shelf.place, made, tokenizer, object_bytes)
        log.info(
            "tokenized %d documents, %d tokens in %.1f s: %s",
            built.documents, built.tokens, time.monotonic() - began, built.directory,
        )  # fmt: skip
        shelf.remember(built, request)
    if wanted is not None and built.digest != wanted:
        raise _other_content(shelf.place, wanted, built.digest)
    return shelf.share(built, [request, asked])


def one_body(config: DataConfig, part: SourceConfig) -> DataConfig:
    """The configuration of one body alone: how to tokenize from ``config``, what from ``part``."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(SourceConfig)}
    return dataclasses.replace(config, **fields, configs={}, train_weights={})


def _check_tokenizer(found: TokenCache | Mixture | Imported, tokenizer: Tokenizer) -> None:
    if found.tokenizer != tokenizer.id:
        raise DataError(f"data.tokenizer: {tokenizer.id} is not the run's, which is {found.tokenizer}")


def _other_content(place: str, wanted: str, here: str) -> DataError:
    return DataError(
        f"data: the run trains on tokens {wanted[:12]}, the urls here give {here[:12]}; "
        f"copy {os.path.join(place, wanted)} from the host that the run comes from"
    )
