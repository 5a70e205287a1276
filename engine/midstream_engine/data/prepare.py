"""From the configuration to token caches, without tokenizing twice."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator, Sequence

from midstream_engine import records
from midstream_engine.config.data import DataConfig, SourceConfig
from midstream_engine.data import cache, hub, mixture, sources, tokenizing, units
from midstream_engine.data.batches import Validation
from midstream_engine.data.cache import TokenCache
from midstream_engine.data.errors import DataError
from midstream_engine.data.mixture import Mixture
from midstream_engine.data.tokenizer import Tokenizer

log = logging.getLogger(__name__)
_WORK = ".tokenizing-"
_FORGOTTEN = 14 * 86400.0  # seconds after which unfinished work that nobody took up again is removed
_NOTHING = "data.train_urls is empty: name files, or stdlib:**/*.py to try things"


def data_root(root: str) -> str:
    """Where a host keeps its token caches."""
    return os.path.join(root, "data")


def open_training(
    root: str, config: DataConfig, tokenizer: Tokenizer, *, seq_len: int, wanted: str | None = None
) -> TokenCache | Mixture:
    """What training reads: the tokens of one body of text, or a mixture, or documents packed into ``seq_len``.

    ``wanted`` is the digest that a checkpoint names: see ``open_cache``. Raises DataError also where the configuration
    asks for another order than the one that digest stands for.
    """
    place = data_root(root)
    parts = config.configs or {"": config}
    counts = config.block_counts() if config.configs else {"": 1}
    block = config.mixture_block_size if config.configs else 1
    pack = seq_len if config.pack else None
    if wanted is not None and os.path.exists(os.path.join(place, wanted, records.MANIFEST)):
        found = mixture.open_data(os.path.join(place, wanted))
        mixture.check_same_order(found, counts, block, pack)
        _check_tokenizer(found, tokenizer)
        return found
    plain = len(counts) == 1 and pack is None
    body_wanted = wanted if plain else None
    opened = {
        name: open_cache(
            root, training_urls(parts[name]), _one_body(config, parts[name]), tokenizer, wanted=body_wanted
        )
        for name in counts
    }
    if plain:
        return next(iter(opened.values()))
    mixed = mixture.assemble(place, opened, counts, block, pack)
    if wanted is not None and mixed.digest != wanted:
        raise _other_content(place, wanted, mixed.digest)
    return mixed


def open_validation(root: str, config: DataConfig, tokenizer: Tokenizer) -> Validation | None:
    """The validation sets by name (one body of text: the name is empty); None where there are none."""
    found = {
        name: open_cache(root, urls, _one_body(config, part), tokenizer)
        for name, part in sorted((config.configs or {"": config}).items())
        if (urls := validation_urls(part))
    }
    return Validation(found) if found else None


def training_urls(part: SourceConfig) -> list[str]:
    """The urls of a body's training text, its dataset among them."""
    return [*part.train_urls, *([hub.dataset_url(part.id, part.name, "train")] if part.id else [])]


def validation_urls(part: SourceConfig) -> list[str]:
    """The same of its validation text. Where urls are given, a dataset's own validation split is left alone."""
    if part.validation_urls or part.id is None:
        return part.validation_urls
    return [hub.dataset_url(part.id, part.name, "validation")]


def open_cache(
    root: str,
    urls: Sequence[str],
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    wanted: str | None = None,
    unit_bytes: int = units.UNIT_BYTES,
) -> TokenCache:
    """The tokens of ``urls``: from the cache where one was built of the same files, else built now.

    ``wanted`` is the digest that a checkpoint names: a cache of that digest is used as it is, whatever the urls hold
    today; where there is none, the urls must still give exactly that content, else DataError. ``unit_bytes``: see
    ``units.cut``. Another program that builds the same is waited for.
    """
    place = data_root(root)
    if wanted is not None and os.path.exists(os.path.join(place, wanted, records.MANIFEST)):
        found = TokenCache(os.path.join(place, wanted))
        _check_tokenizer(found, tokenizer)
        return found
    if not urls:
        raise DataError(_NOTHING)
    listed = sources.list_sources(urls)
    request = {
        "sources": [dataclasses.astuple(source) for source in listed],
        "tokenizer": tokenizer.id,
        "max_bytes": config.max_bytes,
        "text_key": config.text_key,
    }
    name = hashlib.sha256(records.canonical_json(request)).hexdigest()
    index = os.path.join(place, ".requests", name + ".json")
    found = _known(place, index, wanted)
    if found is not None:
        return found
    with _working_directory(place, f"{name}-{unit_bytes}") as directory:
        found = _known(place, index, wanted)  # by whom this one waited for
        if found is not None:
            return found
        began = time.monotonic()
        task = tokenizing.Task(
            directory, tokenizer, config.tokenizer, config.eos_token, config.text_key, config.max_bytes
        )
        made = tokenizing.tokenize(units.cut(listed, unit_bytes), task, config.num_tokenize_workers)
        with contextlib.closing(made):
            built = cache.build_from_tokens(place, made, tokenizer)
        log.info(
            "tokenized %d documents, %d tokens in %.1f s: %s",
            built.documents, built.tokens, time.monotonic() - began, built.directory,
        )  # fmt: skip
        os.makedirs(os.path.dirname(index), exist_ok=True)
        records.write_json(index, {"digest": built.digest})
    if wanted is not None and built.digest != wanted:
        raise _other_content(place, wanted, built.digest)
    return built


def _one_body(config: DataConfig, part: SourceConfig) -> DataConfig:
    """The configuration of one body alone: how to tokenize from ``config``, what from ``part``."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(SourceConfig)}
    return dataclasses.replace(config, **fields, configs={}, train_weights={})


def _known(place: str, index: str, wanted: str | None) -> TokenCache | None:
    """The cache that an earlier start built of the same files."""
    known = records.read_json_or_none(index)
    if known is None or wanted not in (None, known["digest"]):
        return None
    directory = os.path.join(place, known["digest"])
    return TokenCache(directory) if os.path.exists(os.path.join(directory, records.MANIFEST)) else None


def _check_tokenizer(found: TokenCache | Mixture, tokenizer: Tokenizer) -> None:
    if found.tokenizer != tokenizer.id:
        raise DataError(f"data.tokenizer: {tokenizer.id} is not the run's, which is {found.tokenizer}")


def _other_content(place: str, wanted: str, here: str) -> DataError:
    return DataError(
        f"data: the run trains on tokens {wanted[:12]}, the urls here give {here[:12]}; "
        f"copy {os.path.join(place, wanted)} from the host that the run comes from"
    )


@contextlib.contextmanager
def _working_directory(place: str, name: str) -> Iterator[str]:
    """Where finished units of one request lie until the cache is built. One program at a time has it; it stays where
    the program fails or is killed, so that the next one goes on."""
    os.makedirs(place, exist_ok=True)
    _remove_forgotten(place)
    directory = os.path.join(place, f"{_WORK}{name}")
    while True:
        try:
            os.makedirs(directory, exist_ok=True)
            descriptor = os.open(_lock(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except (FileNotFoundError, FileExistsError):  # whoever had it removes it just now
            continue
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another program tokenizes the same text: waiting for it")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _still(directory, descriptor):  # the one before was done with it
                continue
            for left in os.listdir(directory):
                if left.endswith(".tmp"):
                    os.unlink(os.path.join(directory, left))
            yield directory
            done = f"{directory}.{os.getpid()}"  # gone at once: nobody finds it half removed
            os.rename(directory, done)
            shutil.rmtree(done, ignore_errors=True)
            return
        finally:
            os.close(descriptor)


def _lock(directory: str) -> str:
    """A file of its own: network file systems lock nothing that is not open for writing."""
    return os.path.join(directory, ".lock")


def _still(directory: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(_lock(directory)), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_forgotten(place: str) -> None:
    for name in os.listdir(place):
        if not name.startswith(_WORK):
            continue
        directory = os.path.join(place, name)
        try:
            if time.time() - os.stat(directory).st_mtime < _FORGOTTEN:
                continue
            descriptor = os.open(_lock(directory), os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:  # done, and removed by its owner
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        except BlockingIOError:
            log.debug("%s is in use", directory)
        finally:
            os.close(descriptor)
