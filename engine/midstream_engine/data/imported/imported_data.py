"""Data that another trainer prepared: its own files, in its own order, read as they are.

``<root>/data/<digest>/`` holds ``manifest.json`` and the files, linked from where they lay. The order of samples is
theirs, so a run that came from there goes on with exactly the samples that it would have read there. What the files
mean is in ``neox`` and ``levanter``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any

import google_crc32c
import numpy as np

from midstream_engine import records
from midstream_engine.base_directory import resolved_path
from midstream_engine.data.cache.token_cache import building, check_sizes, commit
from midstream_engine.data.errors import DataError
from midstream_engine.data.order.examples import Examples

FORMAT = "midstream-imported"
VERSION = 1
SCHEME = records.IMPORTED
_BLOCK = 16 << 20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Imported:
    """Opened. ``sizes``: of everything that is read, in tokens and documents."""

    local = True

    def __init__(self, directory: str, manifest: Mapping[str, Any], examples: Examples):
        self.directory, self.manifest = directory, manifest
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.tokens: int = manifest["tokens"]
        self.documents: int = manifest["documents"]
        self.seq_len: int = manifest["seq_len"]
        self.examples = examples


def open_imported(directory: str, manifest: Mapping[str, Any]) -> Imported:
    """DataError where it is not whole, or of a kind that is not known."""
    if manifest.get("version") != VERSION:
        raise DataError(f"{directory}/{records.MANIFEST}: not imported data of version {VERSION}")
    check_sizes(directory, manifest["objects"])
    if manifest["kind"] == "neox":
        from midstream_engine.data.imported.neox_dataset import NeoxExamples

        return Imported(directory, manifest, NeoxExamples(directory, manifest))
    if manifest["kind"] == "levanter":
        from midstream_engine.data.imported.levanter_cache import LevanterExamples

        return Imported(directory, manifest, LevanterExamples(directory, manifest))
    raise DataError(f"{directory}/{records.MANIFEST}: imported data of kind {manifest['kind']!r} is not known")


def write_imported(data_root: str, files: Mapping[str, str | bytes], about: Mapping[str, Any]) -> str:
    """A directory of ``files`` (name in it -> path, which is linked or copied, or contents) under ``data_root``.

    ``about``: kind, tokenizer, tokens, documents, seq_len and what the kind needs. Returns where it lies.
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
        manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, **about, "objects": objects}
        manifest["digest"] = hashlib.sha256(records.canonical_json(manifest)).hexdigest()
        return commit(directory, data_root, manifest)


def tokenizer_path(name: str, root: str) -> str:
    """``data.tokenizer``. Where it names files that came along with a run, these are brought under ``root``, and their
    path is returned."""
    if not name.startswith(SCHEME):
        return name
    place = os.path.join(root, "data")
    return os.path.join(place, bring(name, place, "data.tokenizer"))


def bring(url: str, data_root: str, field: str = "data.train_urls") -> str:
    """Make sure that what ``url`` names lies under ``data_root``; returns its digest."""
    source = resolved_path(url.removeprefix(SCHEME)).rstrip("/")
    digest = os.path.basename(source)
    if not _DIGEST.fullmatch(digest):
        raise DataError(f"{field}: {source} is not called by a digest, as imported data are")
    place = os.path.join(data_root, digest)
    if os.path.exists(os.path.join(place, records.MANIFEST)):
        return digest
    try:
        manifest = records.read_json(os.path.join(source, records.MANIFEST))
    except (FileNotFoundError, records.RecordError) as error:
        raise DataError(f"{field}: {source} is no imported data: {error}") from None
    rest = {key: item for key, item in manifest.items() if key != "digest"}
    paths = [entry["path"] for entry in manifest["objects"]]
    if hashlib.sha256(records.canonical_json(rest)).hexdigest() != digest or not all(map(records.safe_relative, paths)):
        raise DataError(f"{field}: {source} holds other data than its name says")
    with building(data_root) as directory:
        for entry in manifest["objects"]:
            _link(os.path.join(source, entry["path"]), os.path.join(directory, entry["path"]))
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
    """A file of numbers, mapped; empty where it is."""
    if not os.path.getsize(path):
        return np.empty(0, dtype)
    # A plain array: slices of a memmap cost microseconds each.
    return np.asarray(np.memmap(path, dtype, "r"))
