"""Levanter's token caches, read unchanged and in Levanter's order.

A cache is a folder with ``shard_ledger.json`` and, for each field of a document, a jagged array: ``<field>/data`` has
all documents end to end; the first number of ``<field>/offsets`` is the number of documents, the others are their ends.
Both are zarr arrays with a declared length far beyond the true one. A *sharded* cache consists of folders with such
arrays. Example i of a dataset is its tokens [i * seq_len, (i + 1) * seq_len).

A cache in a bucket (``gs://``, ``s3://``) stays there: its chunks are read over the network, and its
``shard_ledger.json`` must be the one that was imported.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_core.json_types import JsonObject, JsonValue
from midstream_core.object_store.access import engine_access
from midstream_core.object_store.errors import StoreError
from midstream_core.object_store.urls import GCS, in_bucket, split_url
from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError, SourceNotFoundError
from midstream_engine.data.examples import sequence_mask
from midstream_engine.data.imported_files import vocabulary_of, write_imported
from midstream_engine.data.levanter_order import sample_order
from midstream_engine.data.sources import bucket as bucket_objects
from midstream_engine.data.token_ids import first_unknown, unknown_id

INDEX = "shard_ledger.json"
FIELD = "input_ids"
_CACHE_BYTES = 256 << 20  # of decompressed chunks in memory
_ENDLESS = 1 << 62
_SAMPLED_DOCUMENTS = 1000  # documents whose last token is read
_CHECKED_TOKENS = 4 << 20  # tokens that are checked at a time


@dataclass(frozen=True)
class TokenFolder:
    """A folder with a jagged array of tokens."""

    folder: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class LevanterCache:
    """A finished cache of Levanter's."""

    directory: str
    pieces: list[TokenFolder]
    index: bytes  # content of shard_ledger.json

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(piece.tokens for piece in self.pieces)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return sum(piece.documents for piece in self.pieces)

    def end_token(self) -> int | None:
        """Return the token that all documents end with, None if they differ."""
        tokens: set[int] = set()
        for piece in self.pieces:
            count = min(piece.documents, _SAMPLED_DOCUMENTS)
            ends = np.asarray(_open(f"{piece.folder}/{FIELD}/offsets")[1 : count + 1].read().result())
            data = _open(f"{piece.folder}/{FIELD}/data")
            tokens.update(int(data[int(end) - 1].read().result()) for end in ends if end)
            if len(tokens) > 1:
                return None
        return tokens.pop() if tokens else None

    def check_ids(self, name: str, vocabulary: int, seq_len: int) -> None:
        """Read all tokens, and check that each is in the vocabulary.

        Args:
            name: Name of the dataset, for the message.
            vocabulary: Number of ids.
            seq_len: Tokens of a sample.

        Raises:
            DataError: A token is not; its sample in the order of the cache is named.
        """
        before = 0
        for piece in self.pieces:
            data = _open(f"{piece.folder}/{FIELD}/data")
            for start in range(0, piece.tokens, _CHECKED_TOKENS):
                ids = _tokens(data[start : min(start + _CHECKED_TOKENS, piece.tokens)].read())
                if (at := first_unknown(ids, vocabulary)) is not None:
                    sample = (before + start + at) // seq_len
                    place = f"{self.directory}: dataset {name or 'data'}, sample {sample} of the cache"
                    raise unknown_id(place, int(ids[at]), vocabulary)
            before += piece.tokens


def open_cache(directory: str) -> LevanterCache:
    """Open the cache in ``directory``, or in its folder ``train``.

    Raises:
        DataError: There is none, or it is not finished.
    """
    directory = directory.rstrip("/")
    text = _contents(f"{directory}/{INDEX}")
    if text is None and (text := _contents(f"{directory}/train/{INDEX}")) is not None:
        directory = f"{directory}/train"
    if text is None:
        raise DataError(f"{directory}: no token cache of Levanter's: there is no {INDEX}")
    path = f"{directory}/{INDEX}"
    try:
        index = json.loads(text)
        finished, sharded = index["is_finished"] is True, index.get("layout") == "sharded"
        shards = [str(name) for name in index["finished_shards"] if index["shard_rows"][name]] if sharded else ["."]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: unknown form ({' '.join(str(error).split())[:100]})") from None
    if not finished:
        raise DataError(f"{directory}: this token cache is not finished (hint: let Levanter finish it)")
    pieces = []
    for shard in shards:
        if os.path.isabs(shard) or ".." in shard.split("/"):
            raise DataError(f"{path}: the shard {shard!r} is outside of the cache")
        folder = directory if shard == "." else f"{directory}/{os.path.normpath(shard)}"
        offsets = _open(f"{folder}/{FIELD}/offsets")
        documents = int(offsets[0].read().result())
        pieces.append(TokenFolder(folder, documents, int(offsets[documents].read().result()) if documents else 0))
    cache = LevanterCache(directory, pieces, text)
    if cache.documents != index.get("total_num_rows"):
        raise DataError(f"{path}: has {index.get('total_num_rows')} documents, but the arrays have {cache.documents}")
    return cache


@functools.cache
def _context() -> Any:
    """Return the context that all arrays share, with its memory."""
    import tensorstore as ts  # loads slowly, and only runs with such data need it

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _open(path: str) -> Any:
    """Open one of a cache's arrays.

    Raises:
        DataError: The array cannot be opened.
    """
    import tensorstore as ts  # as above

    kvstore = {"driver": "file", "path": os.path.abspath(path) + "/"}
    if in_bucket(path):
        kvstore = _bucket_store(path)
    try:
        described = ts.KvStore.open(kvstore, context=_context()).result().read("zarr.json").result()
        spec = {"driver": "zarr3" if described.state == "value" else "zarr", "kvstore": kvstore}
        return ts.open(spec, read=True, context=_context(), recheck_cached_data=False).result()
    except ValueError as error:
        raise DataError(f"{path}: cannot be opened: {' '.join(str(error).split())[:200]}") from None


def _tokens(read: Any) -> np.ndarray:
    """Return the result of a read.

    Raises:
        DataError: The array cannot be read.
    """
    try:
        return np.asarray(read.result())
    except ValueError as error:
        raise DataError(f"Levanter's token cache: {' '.join(str(error).split())[:200]}") from None


def _bucket_store(url: str) -> dict[str, JsonValue]:
    """Return TensorStore's key-value store of a directory in a bucket.

    Raises:
        DataError: The URL names no bucket, or the settings of stores cannot be read.
    """
    try:
        scheme, bucket, prefix = split_url(url)
        access = engine_access(url)
    except StoreError as error:
        raise DataError(error.with_hint()) from None
    if scheme == GCS:
        return {"driver": "gcs", "bucket": bucket, "path": f"{prefix}/"}
    endpoints = (access.endpoint, *(os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")))
    regions = (access.region, *(os.environ.get(name, "") for name in ("AWS_REGION", "AWS_DEFAULT_REGION")))
    given = {"endpoint": next(filter(None, endpoints), ""), "aws_region": next(filter(None, regions), "")}
    return {
        "driver": "s3",
        "bucket": bucket,
        "path": f"{prefix}/",
        **{key: text for key, text in given.items() if text},
    }


def _contents(path: str) -> bytes | None:
    """Return the content of a small file, None if there is none."""
    try:
        if in_bucket(path):
            return bucket_objects.get(path)
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, SourceNotFoundError):
        return None


class _TokenReader:
    """Reads the tokens of one cache as one sequence."""

    def __init__(self, folders: Sequence[tuple[str, int]]) -> None:
        """Take the folders of the cache and the number of tokens of each."""
        self._stores: list[Any] = [None] * len(folders)
        self._folders = [folder for folder, _ in folders]
        self._ends = np.cumsum([tokens for _, tokens in folders])

    def begin(self, start: int, count: int) -> list[Any]:
        """Start reading tokens [start, start + count); return the reads."""
        reads = []
        piece = int(np.searchsorted(self._ends, start, side="right"))
        while count:
            if self._stores[piece] is None:
                self._stores[piece] = _open(f"{self._folders[piece]}/{FIELD}/data")
            before = int(self._ends[piece - 1]) if piece else 0
            taken = min(count, int(self._ends[piece]) - start)
            reads.append(self._stores[piece][start - before : start - before + taken].read())
            start, count, piece = start + taken, count - taken, piece + 1
        return reads


class LevanterExamples:
    """Example i is the run's sample i. A mixture is endless; a single dataset repeats."""

    def __init__(self, directory: str, manifest: DataManifest) -> None:
        self.key = manifest["digest"]
        self._length = manifest["seq_len"]
        datasets = manifest["datasets"]
        for number, dataset in enumerate(datasets):
            _check_same(dataset.get("url"), f"{directory}/{number}/{INDEX}")
        self._readers = [
            _TokenReader([
                (folder if in_bucket(folder) else os.path.join(directory, folder), tokens)
                for folder, tokens in dataset["pieces"]
            ])
            for dataset in datasets
        ]  # fmt: skip
        lengths = [sum(tokens for _, tokens in dataset["pieces"]) // self._length for dataset in datasets]
        self._order = sample_order(manifest["order"], lengths)
        self.sequences = sum(lengths)
        self.count = self.sequences if manifest["order"]["mixture"] is None else _ENDLESS
        self._mask = sequence_mask(self._length)
        self._started: dict[int, list[JsonValue]] = {}

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and loss mask of an example."""
        reads = self._started.pop(number, None) or self._begin(number)
        parts = [_tokens(read) for read in reads]
        return np.concatenate(parts).astype(np.int32), self._mask

    def prefetch(self, numbers: np.ndarray) -> None:
        """Start reading and decompressing the chunks of these examples."""
        self._started = {number: self._begin(number) for number in numbers.tolist()}

    def _begin(self, number: int) -> list[JsonValue]:
        dataset, example = self._order(number)
        return self._readers[dataset].begin(example * self._length, self._length)


def _check_same(url: str | None, index: str) -> None:
    """Check that a cache in a bucket is the one that was imported.

    Raises:
        DataError: Its ``shard_ledger.json`` differs.
    """
    if url is None:
        return
    with open(index, "rb") as file:
        if _contents(f"{url}/{INDEX}") != file.read():
            raise DataError(f"{url}: this token cache has changed since it was imported: its {INDEX} differs")


def import_levanter(
    data_root: str,
    caches: Mapping[str, LevanterCache],
    order: JsonObject,
    *,
    seq_len: int,
    tokenizer: str,
    beside: Mapping[str, str] | None = None,
) -> str:
    """Link ``caches`` into a directory under ``data_root``; return its path.

    Caches in a bucket stay there.

    Args:
        data_root: Directory of the host's token caches.
        caches: Caches of each dataset, by name.
        order: ``key`` (of Levanter's data), ``shuffle`` and ``mixture``, as :mod:`levanter_order` reads them.
        seq_len: Tokens of an example.
        tokenizer: Name of the tokenizer.
        beside: Further files to link, by name.

    Raises:
        DataError: A cache does not fill one example, or has a token id beyond the vocabulary. Of caches in a bucket
            the ids are checked when they are read.
    """
    vocabulary = vocabulary_of(tokenizer)
    files: dict[str, str | bytes] = {**(beside or {})}
    datasets = []
    for number, (name, cache) in enumerate(caches.items()):
        if cache.tokens < seq_len:
            raise DataError(f"{cache.directory}: {cache.tokens} tokens do not fill one sequence of {seq_len}")
        files[f"{number}/{INDEX}"] = cache.index
        if in_bucket(cache.directory):
            pieces = [[piece.folder, piece.tokens] for piece in cache.pieces]
            datasets.append({"name": name, "pieces": pieces, "url": cache.directory})
            continue
        if vocabulary is not None:
            cache.check_ids(name, vocabulary, seq_len)
        pieces = []
        for index, piece in enumerate(cache.pieces):
            folder = f"{number}/{index}"
            source = os.path.join(piece.folder, FIELD)
            for parent, _, names in os.walk(source):
                for file in names:
                    path = os.path.join(parent, file)
                    files[f"{folder}/{FIELD}/{os.path.relpath(path, source)}"] = path
            pieces.append([folder, piece.tokens])
        datasets.append({"name": name, "pieces": pieces})
    about = {
        "kind": "levanter", "tokenizer": tokenizer, "tokens": sum(cache.tokens for cache in caches.values()),
        "documents": sum(cache.documents for cache in caches.values()), "seq_len": seq_len, "datasets": datasets,
        "order": dict(order),
    }  # fmt: skip
    return write_imported(data_root, files, about)
