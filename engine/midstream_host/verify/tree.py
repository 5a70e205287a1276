"""Verification of a tree of objects on its host.

A tree is a directory with a manifest whose ``objects`` list every file with its size and SHA-256. `verify` prints one
JSON object a line.
"""

from __future__ import annotations

import os
import posixpath
from typing import Dict, Iterator, List, Optional, Set, Tuple

from midstream_core import records
from midstream_core.json_types import JsonValue
from midstream_host.copy_items import CopyObject
from midstream_host.declarations import MANIFEST_LIMIT, program, reads
from midstream_host.object_files import emit, end_with_operator
from midstream_host.verify import objects as objects_of
from midstream_host.verify.objects import checked


def read_manifest(directory: str, name: str) -> Tuple[str, Dict[str, JsonValue], List[CopyObject]]:
    """Return text, value and objects of a tree's manifest. Raises RecordError."""
    try:
        return objects_of.read_manifest(directory, name)
    except objects_of.NoTreeError as error:
        raise records.RecordError(str(error)) from None


@reads(limit=MANIFEST_LIMIT)
def manifest_value(directory: str, manifest: str) -> Dict[str, JsonValue]:
    """Read and check a manifest; return its value. Objects are not read."""
    return read_manifest(directory, manifest)[1]


@program
def verify(directory: str, manifest: str) -> int:
    """Verify every object of a tree, and the root digest of a checkpoint.

    A program. The root digest is computed from the bytes that were read.

    Events: ``tree`` (``bytes``, ``objects``), ``checked`` (``path``, ``bytes``, ``wrong``), then ``verified``.
    """
    end_with_operator()
    try:
        _, value, objects = read_manifest(directory, manifest)
    except records.RecordError as error:
        emit("problem", kind="manifest", message=str(error))
        return 1
    emit("tree", bytes=sum(entry["size"] for entry in objects), objects=len(objects))
    wrong_paths: Set[str] = set()
    for entry, wrong in checked(directory, objects):
        if wrong is not None:
            wrong_paths.add(entry["path"])
        emit("checked", path=entry["path"], bytes=entry["size"], wrong=wrong)
    extra = sorted(set(files_below(directory)) - {entry["path"] for entry in objects} - {manifest})
    digest: Optional[str] = None
    problems: List[List[str]] = []
    if value.get("format") == records.FORMAT:
        try:
            digest = _root_digest(directory, records.Manifest.from_json(value, manifest), wrong_paths)
        except (records.RecordError, FileNotFoundError, KeyError) as error:
            problems.append([manifest, "its root digest cannot be recomputed: {}".format(error)])
        else:
            if digest != value["root_digest"]:
                problems.append([manifest, "root digest is {}, it says {}".format(digest, value["root_digest"])])
    recorded = value["root_digest"] if value.get("format") == records.FORMAT else None
    emit("verified", extra=extra, recorded=recorded, recomputed=digest, problems=problems)
    return 0


def _root_digest(directory: str, manifest: records.Manifest, wrong: Set[str]) -> str:
    """Compute the root digest from the measured hashes, without ``wrong`` objects."""
    sha256 = {entry.path: entry.sha256 for entry in manifest.object_entries if entry.path not in wrong}
    state = records.checkpoint_state(directory)
    lost = sorted({path for array in manifest.array_entries for path in array.objects} - set(sha256))
    if lost:
        raise records.RecordError("{} is missing or corrupt".format(lost[0]))
    return records.root_digest(manifest.array_entries, sha256, state)


def files_below(directory: str) -> Iterator[str]:
    """Paths of all files below ``directory``, relative to it."""
    for parent, _, names in os.walk(directory):
        for name in names:
            yield posixpath.relpath(posixpath.join(parent, name), directory)


@reads()
def store_of(root: str, run_id: str) -> Optional[str]:
    """URL of the run's checkpoints; None where they are on this host."""
    paths = records.RunPaths(root, records.check_run_id(run_id))
    store = records.Store.read_or_none(paths.store_file)
    return store.url if store is not None else None
