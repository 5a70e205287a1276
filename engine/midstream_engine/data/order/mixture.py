"""Several bodies of text in fixed proportions, and packed text: what a run reads where that is not one plain cache.

``<root>/data/<digest>/`` holds ``manifest.json`` and a token cache a body under ``<digest of the body>/``, hard-linked
from its own place where that is possible. So one directory is all that a run reads, one digest names content,
proportions and packing together, and copying the objects of one manifest moves it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from midstream_engine import records
from midstream_engine.data.cache.token_cache import ObjectWriter, TokenCache, building, check_sizes, commit
from midstream_engine.data.errors import DataError
from midstream_engine.data.imported.imported_data import FORMAT as IMPORTED
from midstream_engine.data.imported.imported_data import Imported, open_imported
from midstream_engine.data.order import packing
from midstream_engine.data.order.examples import Examples, Packed, Stretches

FORMAT = "midstream-mixture"
VERSION = 1


@dataclass(frozen=True)
class Body:
    """``share``: how many of each block's examples it gives."""

    name: str
    share: int
    cache: TokenCache
    examples: Examples | None  # packed ones; None where they are cut when they are read


class Mixture:
    """An opened mixture. ``block``: examples of a block; ``pack``: the length of packed examples, or None."""

    def __init__(self, directory: str, manifest: Mapping[str, Any], bodies: Sequence[Body]):
        self.directory = directory
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.block: int = manifest["block"]
        self.pack: int | None = manifest["pack"]["seq_len"] if manifest["pack"] else None
        self.bodies = list(bodies)
        self.tokens: int = sum(body.cache.tokens for body in self.bodies)
        self.documents: int = sum(body.cache.documents for body in self.bodies)

    @property
    def local(self) -> bool:
        """Whether all of it lies in directories of this host."""
        return all(body.cache.local for body in self.bodies)


def open_mixture(directory: str, manifest: Mapping[str, Any]) -> Mixture:
    """The mixture in ``directory``. DataError where it is not whole."""
    if manifest.get("version") != VERSION:
        raise DataError(f"{directory}/{records.MANIFEST}: not a mixture of version {VERSION}")
    check_sizes(directory, manifest["objects"])
    length = manifest["pack"]["seq_len"] if manifest["pack"] else None
    bodies = []
    for part in manifest["bodies"]:
        cache = TokenCache(os.path.join(directory, part["digest"]))
        packed = None if length is None else Packed(cache, packing.read(cache.directory), length)
        bodies.append(Body(part["name"], part["share"], cache, packed))
    return Mixture(directory, manifest, bodies)


def open_data(directory: str) -> TokenCache | Mixture | Imported:
    """What lies there, by its manifest's format."""
    try:
        manifest = records.read_json(os.path.join(directory, records.MANIFEST))
    except (FileNotFoundError, records.RecordError) as error:
        raise DataError(f"{directory} is no token cache: {error}") from None
    if manifest.get("format") == IMPORTED:
        return open_imported(directory, manifest)
    return open_mixture(directory, manifest) if manifest.get("format") == FORMAT else TokenCache(directory)


def bodies_of(data: TokenCache | Mixture | Imported, seq_len: int) -> tuple[list[tuple[str, int, Examples]], int]:
    """(name, share of a block, examples) of each body, and the block's size."""
    if isinstance(data, Imported):
        return [("", 1, data.examples)], 1
    if isinstance(data, TokenCache):
        return [("", 1, Stretches(data, seq_len))], 1
    if data.pack not in (None, seq_len):
        raise DataError(f"model.seq_len is {seq_len}, but {data.directory} is packed for {data.pack}")
    bodies = [(body.name, body.share, body.examples or Stretches(body.cache, seq_len)) for body in data.bodies]
    return bodies, data.block


def assemble(
    data_root: str, caches: Mapping[str, TokenCache], shares: Mapping[str, int], block: int, pack: int | None
) -> Mixture:
    """The mixture of ``caches``, packed into ``pack`` tokens an example where that is given: under ``data_root``, or,
    where a body lies elsewhere, put together in memory. Both have the same digest and the same order."""
    manifest = _describe(caches, shares, block, pack)
    if not all(cache.local for cache in caches.values()):
        return _gathered(caches, manifest, pack)
    with building(data_root) as directory:
        objects: dict[str, dict[str, Any]] = {}
        for name in sorted(caches):
            cache = caches[name]
            place = os.path.join(directory, cache.digest)
            if not os.path.exists(place):  # the same text under two names is there once
                os.mkdir(place)
                entries = [records.ObjectEntry(**entry) for entry in cache.manifest["objects"]]
                for entry in entries:
                    _link(os.path.join(cache.directory, entry.path), os.path.join(place, entry.path))
                if pack is not None:
                    entries += packing.write(packing.pack(cache.offsets(), pack), place)
                entries.append(_manifest_entry(cache, place))
                for entry in entries:
                    path = f"{cache.digest}/{entry.path}"
                    objects[path] = dataclasses.asdict(dataclasses.replace(entry, path=path))
        final = commit(directory, data_root, {**manifest, "objects": list(objects.values())})
        return open_mixture(final, records.read_json(os.path.join(final, records.MANIFEST)))


def _describe(
    caches: Mapping[str, TokenCache], shares: Mapping[str, int], block: int, pack: int | None
) -> dict[str, Any]:
    """The manifest, without its objects. The order follows from it; the objects are named by the bodies' digests."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": next(iter(caches.values())).tokenizer,
        "block": block,
        "pack": None if pack is None else {"seq_len": pack, "method": packing.METHOD},
        "bodies": [{"name": name, "digest": caches[name].digest, "share": shares[name]} for name in sorted(caches)],
    }
    return {**manifest, "digest": hashlib.sha256(records.canonical_json(manifest)).hexdigest()}


def _gathered(caches: Mapping[str, TokenCache], manifest: Mapping[str, Any], pack: int | None) -> Mixture:
    bodies = []
    for part in manifest["bodies"]:
        cache = caches[part["name"]]
        packed = None if pack is None else Packed(cache, packing.pack(cache.offsets(), pack), pack)
        bodies.append(Body(part["name"], part["share"], cache, packed))
    return Mixture(", ".join(body.cache.directory for body in bodies), manifest, bodies)


def check_same_order(
    data: TokenCache | Mixture | Imported, shares: Mapping[str, int], block: int, pack: int | None
) -> None:
    """DataError where the configuration asks for other proportions or another packing than the run's data has."""
    if isinstance(data, Imported):
        return  # its order is its own
    if isinstance(data, TokenCache):
        theirs: dict[str, int] = {"": 1}
        their_block, their_pack = 1, None
    else:
        theirs = {body.name: body.share for body in data.bodies}
        their_block, their_pack = data.block, data.pack
    if their_pack != pack:
        raise _changed("data.pack", _packing(pack), _packing(their_pack))
    # One body alone has no proportions, whatever it is called.
    if len(theirs) == len(shares) == 1:
        return
    if theirs != dict(shares):
        raise _changed("data.train_weights", _shares(shares, block), _shares(theirs, their_block))


def _changed(key: str, ours: str, theirs: str) -> DataError:
    return DataError(f"{key} asks for {ours}, but the run trains on {theirs}: its data order would change")


def _packing(pack: int | None) -> str:
    return "text that is not packed" if pack is None else f"documents packed into {pack} tokens"


def _shares(shares: Mapping[str, int], block: int) -> str:
    if list(shares) == [""]:
        return "one body of text"
    return ", ".join(f"{name} {share}" for name, share in sorted(shares.items())) + f" of every {block} sequences"


def _link(source: str, place: str) -> None:
    try:
        os.link(source, place)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, place)


def _manifest_entry(cache: TokenCache, place: str) -> records.ObjectEntry:
    """Copy the cache's own manifest and describe it as an object."""
    with open(os.path.join(cache.directory, records.MANIFEST), "rb") as file:
        data = file.read()
    writer = ObjectWriter(place, records.MANIFEST, len(data))
    writer.write(data)
    return writer.entries[0]
