"""Open the data that a configuration describes, tokenizing only what no cache has."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Mapping, Sequence

from midstream_core import records
from midstream_engine.config.data import DataConfig, SourceConfig
from midstream_engine.data import mixture, token_cache
from midstream_engine.data.batches import Validation
from midstream_engine.data.cache_directory import CacheDirectory, data_root, request_of
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported_data import ImportedData
from midstream_engine.data.imported_files import SCHEME as IMPORTED
from midstream_engine.data.imported_files import link_imported, tokenizer_path
from midstream_engine.data.mixture import Mixture
from midstream_engine.data.sources import hugging_face_hub, list_sources
from midstream_engine.data.token_cache import TokenCache
from midstream_engine.data.tokenize import tokenize_units, units
from midstream_engine.data.tokenize.tokenizer import Tokenizer
from midstream_engine.data.tokenize.tokenizing_directory import tokenizing_directory

log = logging.getLogger(__name__)
_NOTHING = "data.train_urls is empty: name files, or stdlib:**/*.py to try things"


def open_training(
    root: str, config: DataConfig, tokenizer: Tokenizer, *, seq_len: int, expected_digest: str | None = None
) -> TokenCache | Mixture | ImportedData:
    """Open the training data: tokens of one dataset, a mixture, or packed documents.

    Documents are packed into ``seq_len``.

    Args:
        root: Root directory of the host.
        config: ``data`` of the configuration.
        tokenizer: Tokenizer of the run.
        seq_len: Tokens of an example.
        expected_digest: Digest from a checkpoint; see :func:`open_cache`.

    Raises:
        DataError: The data cannot be opened, or the configuration has another order than ``expected_digest``.
    """
    directory = data_root(root)
    parts = config.configs or {"": config}
    counts = config.block_counts() if config.configs else {"": 1}
    block = config.mixture_block_size if config.configs else 1
    pack = seq_len if config.pack else None
    if len(urls := training_urls(config)) == 1 and urls[0].startswith(IMPORTED):
        if expected_digest is None or not os.path.exists(os.path.join(directory, expected_digest)):
            digest = link_imported(urls[0], directory)
        else:
            digest = expected_digest
        if expected_digest is not None and expected_digest != digest:
            raise _other_content(directory, expected_digest, digest)
        expected_digest = digest
    if expected_digest is not None and os.path.exists(os.path.join(directory, expected_digest, records.MANIFEST)):
        data = mixture.open_data(os.path.join(directory, expected_digest))
        mixture.check_same_order(data, counts, block, pack)
        _check_tokenizer(data, tokenizer)
        return data
    plain = len(counts) == 1 and pack is None
    wanted_cache = expected_digest if plain else None
    opened = {
        name: open_cache(
            root, training_urls(parts[name]), dataset_config(config, parts[name]), tokenizer, digest=wanted_cache
        )
        for name in counts
    }
    if plain:
        return next(iter(opened.values()))
    mixed = mixture.assemble(directory, opened, counts, block, pack)
    if expected_digest is not None and mixed.digest != expected_digest:
        raise _other_content(directory, expected_digest, mixed.digest)
    return mixed


def open_validation(
    root: str, config: DataConfig, tokenizer: Tokenizer, digests: Mapping[str, Mapping[str, str]] | None = None
) -> Validation | None:
    """Open the validation sets by name; None if there are none.

    The name of a single dataset is empty.

    ``digests`` is a checkpoint's record of the run's sets (``Validation.to_json``). If the configuration still requests
    the same text and this host has that cache, it is used, even if the URLs have changed or are unreachable.
    """
    sets, requests = {}, {}
    for name, component in sorted((config.configs or {"": config}).items()):
        urls = validation_urls(component)
        if not urls:
            continue
        dataset = dataset_config(config, component)
        requests[name] = request_of(urls, dataset, tokenizer)
        before = (digests or {}).get(name, {})
        directory = os.path.join(data_root(root), before.get("digest", ""))
        if before.get("request") == requests[name] and os.path.exists(os.path.join(directory, records.MANIFEST)):
            sets[name] = TokenCache(directory)
            continue
        try:
            sets[name] = open_cache(root, urls, dataset, tokenizer)
        except hugging_face_hub.NoSplitError as error:
            log.warning("%s: no evaluation on it (hint: data.validation_urls names other text)", error)
    return Validation(sets, requests) if sets else None


def training_urls(dataset: SourceConfig) -> list[str]:
    """Return the URLs of a dataset's training text."""
    return [
        *dataset.train_urls,
        *([hugging_face_hub.dataset_url(dataset.id, dataset.name, "train")] if dataset.id else []),
    ]


def validation_urls(dataset: SourceConfig) -> list[str]:
    """Return the URLs of its validation text.

    Given URLs replace a Hugging Face dataset's validation split.
    """
    if dataset.validation_urls or dataset.id is None:
        return dataset.validation_urls
    return [hugging_face_hub.dataset_url(dataset.id, dataset.name, "validation")]


def open_cache(
    root: str,
    urls: Sequence[str],
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    digest: str | None = None,
    unit_bytes: int = units.UNIT_BYTES,
    object_bytes: int = token_cache.OBJECT_BYTES,
) -> TokenCache:
    """Open the tokens of ``urls``, from a cache if there is one, else build them.

    The cache is one of the same files, here or under ``data.cache_dir``.

    A new cache is also stored in ``data.cache_dir`` if that is a bucket. If another process builds the same cache, this
    one waits for it.

    Args:
        root: Root directory of the host.
        urls: The text.
        config: ``data`` of the configuration, for one dataset.
        tokenizer: Tokenizer of the run.
        digest: Digest from a checkpoint. A cache of that digest is used, even if the URLs have changed; without one,
            the URLs must still have exactly that content.
        unit_bytes: See :func:`units.cut`.
        object_bytes: Bytes of an object of the cache.

    Raises:
        DataError: The text cannot be read, or is not that of ``digest``.
    """
    caches = CacheDirectory(root, config)
    if digest is not None and (cache := caches.find(digest)) is not None:
        _check_tokenizer(cache, tokenizer)
        return cache
    if not urls:
        raise DataError(_NOTHING)
    url_request = request_of(urls, config, tokenizer)
    try:
        listed = list_sources.list_sources(urls)
    except DataError as error:
        cache = caches.find_remote_request(url_request, digest)
        if cache is None:
            raise
        log.info("%s; using the cache of the same URLs: %s", error, cache.directory)
        return cache
    request = request_of([dataclasses.astuple(source) for source in listed], config, tokenizer)
    cache = caches.find_request(request, digest)
    if cache is not None:
        return caches.share(cache, [request, url_request])
    with tokenizing_directory(caches.path, f"{request}-{unit_bytes}") as directory:
        cache = caches.find_request(request, digest)  # from the process that this one waited for
        if cache is not None:
            return caches.share(cache, [request, url_request])
        began = time.monotonic()
        task = tokenize_units.Task(
            directory, tokenizer, tokenizer_path(config.given_tokenizer, root), config.eos_token, config.text_key,
            config.max_bytes,
        )  # fmt: skip
        made = tokenize_units.tokenize(units.cut(listed, unit_bytes), task, config.num_tokenize_workers)
        with contextlib.closing(made):
            built = token_cache.build_from_tokens(caches.path, made, tokenizer, object_bytes)
        log.info(
            "tokenized %d documents, %d tokens in %.1f s: %s",
            built.documents, built.tokens, time.monotonic() - began, built.directory,
        )  # fmt: skip
        caches.remember(built, request)
    if digest is not None and built.digest != digest:
        raise _other_content(caches.path, digest, built.digest)
    return caches.share(built, [request, url_request])


def dataset_config(config: DataConfig, dataset: SourceConfig) -> DataConfig:
    """Return a configuration: the tokenizer of ``config``, the text of ``dataset``."""
    fields = {field.name: getattr(dataset, field.name) for field in dataclasses.fields(SourceConfig)}
    return dataclasses.replace(config, **fields, configs={}, train_weights={})


def _check_tokenizer(data: TokenCache | Mixture | ImportedData, tokenizer: Tokenizer) -> None:
    if data.tokenizer != tokenizer.id:
        raise DataError(f"data.tokenizer: {tokenizer.id} is not the run's, which is {data.tokenizer}")


def _other_content(directory: str, expected_digest: str, digest: str) -> DataError:
    return DataError(
        f"data: the run trains on tokens {expected_digest[:12]}, the URLs now have {digest[:12]} "
        f"(hint: copy {os.path.join(directory, expected_digest)} from the source host)"
    )
