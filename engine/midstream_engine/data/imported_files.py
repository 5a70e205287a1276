"""Files of data that another trainer prepared, read unchanged and in its order.

``<root>/data/<digest>/`` has ``manifest.json`` and hard links to the files. The order of samples is the other
trainer's, so an imported run continues with exactly the samples that it would have read there. ``neox_dataset`` and
``levanter_cache`` read the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Mapping

import google_crc32c
import numpy as np

from midstream_core import records
from midstream_core.json_types import JsonObject, JsonValue, object_or_empty, optional_list, str_of
from midstream_engine.base_directory import resolved_path
from midstream_engine.data.errors import DataError
from midstream_engine.data.token_cache import building, commit
from midstream_engine.data.tokenize.tokenizer import IDS, IdTokenizer

FORMAT = "midstream-imported"
VERSION = 2
SCHEME = records.IMPORTED
_BLOCK = 16 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


def write_imported(data_root: str, files: Mapping[str, str | bytes], about: JsonObject) -> str:
    """Make a directory of ``files`` under ``data_root``; return its path.

    ``files``: name -> path, which is linked or copied, or contents. ``about``: kind, tokenizer, tokens, documents,
    seq_len and what the kind needs.
    """
    with building(data_root) as directory:
        objects = []
        for name in sorted(files):
            source, place = files[name], os.path.join(directory, name)
            if isinstance(source, bytes):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb") as file:
                    file.write(source)
                    file.flush()
                    os.fsync(file.fileno())
            else:
                _link(source, place)
            objects.append(dataclasses.asdict(_described(place, name)))
        manifest: dict[str, JsonValue] = {"format": FORMAT, "version": VERSION, **about, "objects": objects}
        manifest["digest"] = hashlib.sha256(records.canonical_json(manifest)).hexdigest()
        return commit(directory, data_root, manifest)


def tokenizer_path(name: str, root: str) -> str:
    """Return ``data.tokenizer``, linking the files of an imported tokenizer.

    For files that were imported with a run the path of the links is returned.
    """
    if not name.startswith(SCHEME):
        return name
    place = os.path.join(root, "data")
    return os.path.join(place, link_imported(name, place, "data.tokenizer"))


def vocabulary_of(tokenizer: str) -> int | None:
    """Return the vocabulary size of a tokenizer ``ids:SIZE[:EOS]``, None for others."""
    return IdTokenizer(tokenizer).vocab_size if tokenizer.startswith(IDS) else None


def link_imported(url: str, data_root: str, field: str = "data.train_urls") -> str:
    """Link the imported data of ``url`` into ``data_root``; return its digest.

    Data that is already there is not linked again.

    Raises:
        DataError: There is no such data, or it is not that of its digest.
    """
    source = resolved_path(url.removeprefix(SCHEME)).rstrip("/")
    digest = os.path.basename(source)
    if not _DIGEST.fullmatch(digest):
        raise DataError(f"{field}: {source} is no imported data: its name is no digest")
    place = os.path.join(data_root, digest)
    if os.path.exists(os.path.join(place, records.MANIFEST)):
        return digest
    try:
        manifest = object_or_empty(records.read_json(os.path.join(source, records.MANIFEST)))
    except (FileNotFoundError, records.RecordError) as error:
        raise DataError(f"{field}: {source} is no imported data: {error}") from None
    rest = {key: item for key, item in manifest.items() if key != "digest"}
    paths = [str_of(object_or_empty(entry)["path"]) for entry in optional_list(manifest["objects"])]
    if hashlib.sha256(records.canonical_json(rest)).hexdigest() != digest or not all(map(records.safe_relative, paths)):
        raise DataError(f"{field}: the data in {source} has another digest than its name")
    with building(data_root) as directory:
        for path in paths:
            _link(os.path.join(source, path), os.path.join(directory, path))
        commit(directory, data_root, manifest)
    return digest


def _described(path: str, name: str) -> records.ObjectEntry:
    sha256, crc, size = hashlib.sha256(), 0, 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            sha256.update(block)
            crc = google_crc32c.extend(crc, block)
            size += len(block)
    return records.ObjectEntry(name, size, sha256.hexdigest(), records.crc32c_base64(crc))


def _link(source: str, place: str) -> None:
    os.makedirs(os.path.dirname(place), exist_ok=True)
    with contextlib.suppress(OSError):  # another file system, or one without links
        os.link(os.path.realpath(source), place)
        return
    shutil.copyfile(source, place)


def mapped(path: str, dtype: np.dtype | str) -> np.ndarray:
    """Return a file of numbers, mapped; an empty array for an empty file."""
    if not os.path.getsize(path):
        return np.empty(0, dtype)
    # A plain array: slices of a memmap cost microseconds each.
    return np.asarray(np.memmap(path, dtype, "r"))
