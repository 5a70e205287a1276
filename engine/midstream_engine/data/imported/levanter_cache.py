"""Levanter's token caches as they lie, in Levanter's order.

A cache is a folder with ``shard_ledger.json`` and, for each field of a document, a jagged array: ``<field>/data``, all
documents end to end, and ``<field>/offsets``, whose first number counts the documents and whose others say where each
ends. Both are zarr arrays with a declared length far beyond the true one. A *sharded* cache has no arrays of its own,
but folders that do, one after the other. Example i of a body is its tokens [i * seq_len, (i + 1) * seq_len).

A cache in a bucket (``gs://``) stays there: its chunks are read from wherever the run is, and its ledger has to be the
one that was imported.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from midstream_engine.data.errors import DataError, NotThere
from midstream_engine.data.imported.imported_data import write_imported
from midstream_engine.data.imported.levanter_order import sample_order
from midstream_engine.data.order.examples import sequence_mask
from midstream_engine.data.sources import gcs

LEDGER = "shard_ledger.json"
FIELD = "input_ids"
BUCKETS = "gs://"
_CACHE_BYTES = 256 << 20  # of decompressed chunks, kept between reads
_ENDLESS = 1 << 62
_LOOKED_AT = 1000  # documents whose last token is looked at


@dataclass(frozen=True)
class Piece:
    """A folder with a jagged array of tokens."""

    folder: str
    documents: int
    tokens: int


@dataclass(frozen=True)
class Cache:
    """A finished cache."""

    directory: str
    pieces: list[Piece]
    ledger: bytes  # as it lies there

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def documents(self) -> int:
        return sum(piece.documents for piece in self.pieces)

    def end_token(self) -> int | None:
        """The token that the documents end with, as Levanter lets them; None where they do not agree on one."""
        found: set[int] = set()
        for piece in self.pieces:
            count = min(piece.documents, _LOOKED_AT)
            ends = np.asarray(_open(f"{piece.folder}/{FIELD}/offsets")[1 : count + 1].read().result())
            data = _open(f"{piece.folder}/{FIELD}/data")
            found.update(int(data[int(end) - 1].read().result()) for end in ends if end)
            if len(found) > 1:
                return None
        return found.pop() if found else None


def open_cache(directory: str) -> Cache:
    """The cache in ``directory``, or in its folder ``train``. DataError where there is none, or an unfinished one."""
    directory = directory.rstrip("/")
    text = _contents(f"{directory}/{LEDGER}")
    if text is None and (text := _contents(f"{directory}/train/{LEDGER}")) is not None:
        directory = f"{directory}/train"
    if text is None:
        raise DataError(f"{directory}: no token cache of Levanter's: there is no {LEDGER}")
    path = f"{directory}/{LEDGER}"
    try:
        ledger = json.loads(text)
        finished, sharded = ledger["is_finished"] is True, ledger.get("layout") == "sharded"
        shards = [str(name) for name in ledger["finished_shards"] if ledger["shard_rows"][name]] if sharded else ["."]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not in a form that is known ({' '.join(str(error).split())[:100]})") from None
    if not finished:
        raise DataError(f"{directory}: this token cache was never finished; let Levanter finish it")
    pieces = []
    for shard in shards:
        if os.path.isabs(shard) or ".." in shard.split("/"):
            raise DataError(f"{path}: the shard {shard!r} does not lie in it")
        folder = directory if shard == "." else f"{directory}/{os.path.normpath(shard)}"
        offsets = _open(f"{folder}/{FIELD}/offsets")
        documents = int(offsets[0].read().result())
        pieces.append(Piece(folder, documents, int(offsets[documents].read().result()) if documents else 0))
    cache = Cache(directory, pieces, text)
    if cache.documents != ledger.get("total_num_rows"):
        raise DataError(f"{path}: speaks of {ledger.get('total_num_rows')} documents, but {cache.documents} are there")
    return cache


@functools.cache
def _context() -> Any:
    """One for all arrays: they share its memory."""
    import tensorstore as ts

    return ts.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})


def _open(path: str) -> Any:
    """One of its arrays. DataError where it cannot be opened."""
    import tensorstore as ts

    kvstore = {"driver": "file", "path": os.path.abspath(path) + "/"}
    if in_bucket(path):
        bucket, _, prefix = path.removeprefix(BUCKETS).partition("/")
        kvstore = {"driver": "gcs", "bucket": bucket, "path": f"{prefix}/"}
    try:
        described = ts.KvStore.open(kvstore, context=_context()).result().read("zarr.json").result()
        spec = {"driver": "zarr3" if described.state == "value" else "zarr", "kvstore": kvstore}
        return ts.open(spec, read=True, context=_context(), recheck_cached_data=False).result()
    except ValueError as error:
        raise DataError(f"{path}: cannot be opened: {' '.join(str(error).split())[:200]}") from None


def in_bucket(path: str) -> bool:
    """Whether it is no path of a file system's."""
    return path.startswith(BUCKETS)


def _contents(path: str) -> bytes | None:
    """Of a small file; None where there is none."""
    try:
        if in_bucket(path):
            return gcs.get(path)
        with open(path, "rb") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError, NotThere):
        return None


class _Body:
    """The tokens of one cache as one row."""

    def __init__(self, folders: Sequence[tuple[str, int]]):
        """Folders and how many tokens each has."""
        self._stores: list[Any] = [None] * len(folders)
        self._folders = [folder for folder, _ in folders]
        self._ends = np.cumsum([tokens for _, tokens in folders])

    def begin(self, start: int, count: int) -> list[Any]:
        """Reads of tokens [start, start + count) under way."""
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
    """Example i is the run's sample number i. A mixture never ends; one body alone begins anew."""

    def __init__(self, directory: str, manifest: Mapping[str, Any]):
        self.key = manifest["digest"]
        self._length = manifest["seq_len"]
        bodies = manifest["bodies"]
        for number, body in enumerate(bodies):
            _check_same(body.get("url"), f"{directory}/{number}/{LEDGER}")
        self._bodies = [
            _Body([
                (folder if in_bucket(folder) else os.path.join(directory, folder), tokens)
                for folder, tokens in body["pieces"]
            ])
            for body in bodies
        ]  # fmt: skip
        lengths = [sum(tokens for _, tokens in body["pieces"]) // self._length for body in bodies]
        self._order = sample_order(manifest["order"], lengths)
        self.sequences = sum(lengths)
        self.count = self.sequences if manifest["order"]["mixture"] is None else _ENDLESS
        self._mask = sequence_mask(self._length)
        self._under_way: dict[int, list[Any]] = {}

    def read(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        reads = self._under_way.pop(number, None) or self._begin(number)
        try:
            parts = [np.asarray(read.result()) for read in reads]
        except ValueError as error:
            raise DataError(f"Levanter's token cache: {' '.join(str(error).split())[:200]}") from None
        return np.concatenate(parts).astype(np.int32), self._mask

    def bring(self, numbers: np.ndarray) -> None:
        """Have the chunks of these read and decompressed at a time."""
        self._under_way = {number: self._begin(number) for number in numbers.tolist()}

    def _begin(self, number: int) -> list[Any]:
        body, example = self._order(number)
        return self._bodies[body].begin(example * self._length, self._length)


def _check_same(url: str | None, ledger: str) -> None:
    """DataError where a cache in a bucket is not the one that was imported."""
    if url is None:
        return
    with open(ledger, "rb") as file:
        if _contents(f"{url}/{LEDGER}") != file.read():
            raise DataError(f"{url}: this token cache is not there as it was imported: its {LEDGER} is another")


def import_levanter(
    data_root: str,
    caches: Mapping[str, Cache],
    order: Mapping[str, Any],
    *,
    seq_len: int,
    tokenizer: str,
    beside: Mapping[str, str] | None = None,
) -> str:
    """Link ``caches`` into a directory under ``data_root``, but for what lies in a bucket, which is read there; returns
    where it lies. ``order``: ``key`` (of Levanter's
    data), ``shuffle`` and ``mixture`` as :mod:`levanter_order` has them. ``beside``: files to travel along, by name.
    """
    files: dict[str, str | bytes] = {**(beside or {})}
    bodies = []
    for number, (name, cache) in enumerate(caches.items()):
        if cache.tokens < seq_len:
            raise DataError(f"{cache.directory}: {cache.tokens} tokens do not fill one sequence of {seq_len}")
        files[f"{number}/{LEDGER}"] = cache.ledger
        if in_bucket(cache.directory):
            pieces = [[piece.folder, piece.tokens] for piece in cache.pieces]
            bodies.append({"name": name, "pieces": pieces, "url": cache.directory})
            continue
        pieces = []
        for place, piece in enumerate(cache.pieces):
            folder = f"{number}/{place}"
            source = os.path.join(piece.folder, FIELD)
            for parent, _, names in os.walk(source):
                for file in names:
                    path = os.path.join(parent, file)
                    files[f"{folder}/{FIELD}/{os.path.relpath(path, source)}"] = path
            pieces.append([folder, piece.tokens])
        bodies.append({"name": name, "pieces": pieces})
    about = {
        "kind": "levanter", "tokenizer": tokenizer, "tokens": sum(cache.tokens for cache in caches.values()),
        "documents": sum(cache.documents for cache in caches.values()), "seq_len": seq_len, "bodies": bodies,
        "order": dict(order),
    }  # fmt: skip
    return write_imported(data_root, files, about)
