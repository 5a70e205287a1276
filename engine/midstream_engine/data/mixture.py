"""A mixture: several datasets in fixed proportions, or packed documents.

``<root>/data/<digest>/`` has ``manifest.json`` and the token cache of each dataset under ``<digest of the dataset>/``,
hard-linked from its own directory if possible. So a run reads one directory, and one digest identifies content,
proportions and packing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream_core import records
from midstream_core.json_types import JsonValue, object_or_empty
from midstream_engine.data import packing
from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError
from midstream_engine.data.examples import Examples, Packed, Stretches
from midstream_engine.data.imported_data import ImportedData, open_imported
from midstream_engine.data.imported_files import FORMAT as IMPORTED
from midstream_engine.data.token_cache import ObjectWriter, TokenCache, building, check_sizes, commit

FORMAT = "midstream-mixture"
VERSION = 2


@dataclass(frozen=True)
class MixtureDataset:
    """One dataset of a mixture. ``share``: its examples in each block."""

    name: str
    share: int
    cache: TokenCache
    examples: Examples | None  # packed examples; None: stretches, divided when they are read


class Mixture:
    """An open mixture.

    ``block``: examples of a block; ``pack``: tokens of a packed example, or None.
    """

    def __init__(self, directory: str, manifest: DataManifest, datasets: Sequence[MixtureDataset]) -> None:
        self.directory = directory
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.block: int = manifest["block"]
        self.pack: int | None = manifest["pack"]["seq_len"] if manifest["pack"] else None
        self.datasets = list(datasets)
        self.vocab_size: int = min(dataset.cache.vocab_size for dataset in self.datasets)
        self.tokens: int = sum(dataset.cache.tokens for dataset in self.datasets)
        self.documents: int = sum(dataset.cache.documents for dataset in self.datasets)

    @property
    def local(self) -> bool:
        """Whether all of it is in directories of this host."""
        return all(dataset.cache.local for dataset in self.datasets)


def open_mixture(directory: str, manifest: DataManifest) -> Mixture:
    """Open the mixture in ``directory``.

    Raises:
        DataError: The mixture is not complete.
    """
    if manifest.get("version") != VERSION:
        raise DataError(f"{directory}/{records.MANIFEST}: not a mixture of version {VERSION}")
    check_sizes(directory, manifest["objects"])
    length = manifest["pack"]["seq_len"] if manifest["pack"] else None
    datasets = []
    for dataset in manifest["datasets"]:
        cache = TokenCache(os.path.join(directory, dataset["digest"]))
        packed = None if length is None else Packed(cache, packing.read(cache.directory), length)
        datasets.append(MixtureDataset(dataset["name"], dataset["share"], cache, packed))
    return Mixture(directory, manifest, datasets)


def open_data(directory: str) -> TokenCache | Mixture | ImportedData:
    """Open a directory of tokens of any format.

    Raises:
        DataError: The directory has no tokens, or is not complete.
    """
    try:
        manifest = object_or_empty(records.read_json(os.path.join(directory, records.MANIFEST)))
    except (FileNotFoundError, records.RecordError) as error:
        raise DataError(f"{directory} is no token cache: {error}") from None
    if manifest.get("format") == IMPORTED:
        return open_imported(directory, manifest)
    return open_mixture(directory, manifest) if manifest.get("format") == FORMAT else TokenCache(directory)


def datasets_of(data: TokenCache | Mixture | ImportedData, seq_len: int) -> tuple[list[tuple[str, int, Examples]], int]:
    """Return (name, share of a block, examples) of each dataset, and the block's size.

    Raises:
        DataError: The data is packed for another length.
    """
    if isinstance(data, ImportedData):
        return [("", 1, data.examples)], 1
    if isinstance(data, TokenCache):
        return [("", 1, Stretches(data, seq_len))], 1
    if data.pack not in (None, seq_len):
        raise DataError(f"model.seq_len is {seq_len}, but {data.directory} is packed for {data.pack}")
    datasets = [
        (dataset.name, dataset.share, dataset.examples or Stretches(dataset.cache, seq_len))
        for dataset in data.datasets
    ]
    return datasets, data.block


def assemble(
    data_root: str, caches: Mapping[str, TokenCache], shares: Mapping[str, int], block: int, pack: int | None
) -> Mixture:
    """Make the mixture of ``caches`` under ``data_root``.

    If a dataset is remote, the mixture is made in memory alone.

    Both have the same digest and the same order.

    Args:
        data_root: Directory of the host's token caches.
        caches: Tokens of each dataset, by name.
        shares: Examples of each dataset in a block, by name.
        block: Examples of a block.
        pack: Tokens of a packed example; None: documents are not packed.
    """
    manifest = _describe(caches, shares, block, pack)
    if not all(cache.local for cache in caches.values()):
        return _gathered(caches, manifest, pack)
    with building(data_root) as directory:
        objects: dict[str, dict[str, Any]] = {}
        for name in sorted(caches):
            cache = caches[name]
            target = os.path.join(directory, cache.digest)
            if not os.path.exists(target):  # the same text under two names is stored once
                os.mkdir(target)
                entries = [records.ObjectEntry(**entry) for entry in cache.manifest["objects"]]
                for entry in entries:
                    _link(os.path.join(cache.directory, entry.path), os.path.join(target, entry.path))
                if pack is not None:
                    entries += packing.write(packing.pack(cache.offsets(), pack), target)
                entries.append(_manifest_entry(cache, target))
                for entry in entries:
                    path = f"{cache.digest}/{entry.path}"
                    objects[path] = dataclasses.asdict(dataclasses.replace(entry, path=path))
        final = commit(directory, data_root, {**manifest, "objects": list(objects.values())})
        return open_mixture(final, object_or_empty(records.read_json(os.path.join(final, records.MANIFEST))))


def _describe(
    caches: Mapping[str, TokenCache], shares: Mapping[str, int], block: int, pack: int | None
) -> dict[str, JsonValue]:
    """Return the manifest without its objects: the order and the datasets' digests."""
    manifest: dict[str, JsonValue] = {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": next(iter(caches.values())).tokenizer,
        "block": block,
        "pack": None if pack is None else {"seq_len": pack, "method": packing.METHOD},
        "datasets": [{"name": name, "digest": caches[name].digest, "share": shares[name]} for name in sorted(caches)],
    }
    return {**manifest, "digest": hashlib.sha256(records.canonical_json(manifest)).hexdigest()}


def _gathered(caches: Mapping[str, TokenCache], manifest: DataManifest, pack: int | None) -> Mixture:
    datasets = []
    for dataset in manifest["datasets"]:
        cache = caches[dataset["name"]]
        packed = None if pack is None else Packed(cache, packing.pack(cache.offsets(), pack), pack)
        datasets.append(MixtureDataset(dataset["name"], dataset["share"], cache, packed))
    return Mixture(", ".join(dataset.cache.directory for dataset in datasets), manifest, datasets)


def check_same_order(
    data: TokenCache | Mixture | ImportedData, shares: Mapping[str, int], block: int, pack: int | None
) -> None:
    """Check that the configuration has the proportions and packing of the run's data.

    Raises:
        DataError: The configuration has other proportions or packing.
    """
    if isinstance(data, ImportedData):
        return  # its order is its own
    if isinstance(data, TokenCache):
        theirs: dict[str, int] = {"": 1}
        their_block, their_pack = 1, None
    else:
        theirs = {dataset.name: dataset.share for dataset in data.datasets}
        their_block, their_pack = data.block, data.pack
    if their_pack != pack:
        raise _changed("data.pack", _packing(pack), _packing(their_pack))
    # A single dataset has no proportions, whatever its name.
    if len(theirs) == len(shares) == 1:
        return
    if theirs != dict(shares):
        raise _changed("data.train_weights", _shares(shares, block), _shares(theirs, their_block))


def _changed(key: str, ours: str, theirs: str) -> DataError:
    return DataError(f"{key} is {ours}, but the run trains on {theirs}: its data order would change")


def _packing(pack: int | None) -> str:
    return "text that is not packed" if pack is None else f"documents packed into {pack} tokens"


def _shares(shares: Mapping[str, int], block: int) -> str:
    if list(shares) == [""]:
        return "a single dataset"
    return ", ".join(f"{name} {share}" for name, share in sorted(shares.items())) + f" of every {block} sequences"


def _link(source: str, place: str) -> None:
    try:
        os.link(source, place)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, place)


def _manifest_entry(cache: TokenCache, directory: str) -> records.ObjectEntry:
    """Copy the cache's own manifest to ``directory``; return its entry."""
    with open(os.path.join(cache.directory, records.MANIFEST), "rb") as file:
        data = file.read()
    writer = ObjectWriter(directory, records.MANIFEST, len(data))
    writer.write(data)
    return writer.entries[0]
