"""A checkpoint that is still being written, looked at on the machine where it grows.

An object has one size at every step of a run, so what an earlier checkpoint says of it tells when it is whole. Only
the manifest, which comes last, says that it is what was meant: whoever copies ahead compares in the end. What is whole
is described by lots, each a small manifest of its own beside the objects.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from midstream.remote import hands, runs
from midstream.remote.tree import HASHERS, file_sha256
from midstream_engine import records

AT_ONCE = 256 << 20  # bytes of objects that make a full lot
GATHERED = 0.3  # seconds in which a lot that is not full may grow
POLL = 0.02  # seconds between two looks
LOT = ".ahead-"


def look(
    root: str,
    run_id: str,
    attempt: int,
    serial: int,
    since: int,
    sizes: Mapping[str, int],
    sent: Sequence[str],
    lot: int,
    patience: float,
) -> Dict[str, Any]:
    """What is new of an attempt that was given order ``serial``, after ``patience`` seconds at the latest.

    ``{"answered", "status", "alive", "name", "objects", "manifest"}``: whether the order was carried out or refused or
    the attempt has ended; the newest checkpoint of the attempt from step ``since`` on, None where there is none; of its
    objects (``sizes``: path -> bytes) those that are whole and not in ``sent`` (whose first entry names the checkpoint
    that it speaks of), as ``{path, size, sha256}``; the name of the manifest that describes them, number ``lot``. With
    the answer also ``described`` and ``mover``: see ``runs``."""
    paths = records.RunPaths(root, run_id)
    deadline = time.monotonic() + patience
    first_seen: Optional[float] = None
    while True:
        found = runs.status(root, run_id, attempt)
        name = _newest(paths, attempt, since)
        known = set(sent[1:]) if sent and sent[0] == name else set()
        whole, total = ([], 0) if name is None else _whole(paths.checkpoint(name), sizes, known)
        now = time.monotonic()
        first_seen = now if whole and first_seen is None else first_seen
        gathered = total >= AT_ONCE or (first_seen is not None and now - first_seen >= GATHERED)
        answered = _answered(found, serial)
        if answered or gathered or now >= deadline:
            told = dict(found, answered=answered, name=name, objects=[], manifest="")
            if answered:  # whoever asked wants to know next how the run lies there now
                return dict(told, described=runs.describe(root, run_id), mover=hands.mover(root, run_id))
            if name is None or not whole:
                return told
            objects = _hashed(paths.checkpoint(name), whole)
            return dict(told, objects=objects, manifest=_describe(paths.checkpoint(name), objects, lot))
        time.sleep(POLL)


def rest(directory: str, arrived: Mapping[str, str], lot: int) -> Dict[str, Any]:
    """Of a complete checkpoint: ``{"text", "objects", "manifest"}``, its manifest's text, the objects whose hash is not
    the one in ``arrived`` (path -> SHA-256), and the name of the manifest that describes those."""
    with open(posixpath.join(directory, records.MANIFEST), encoding="utf-8", newline="") as file:
        text = file.read()
    entries = records.Manifest.from_json(json.loads(text), directory).object_entries
    objects = [
        {"path": entry.path, "size": entry.size, "sha256": entry.sha256}
        for entry in entries
        if arrived.get(entry.path) != entry.sha256
    ]
    return {"text": text, "objects": objects, "manifest": _describe(directory, objects, lot) if objects else ""}


def commit(directory: str, text: str) -> None:
    """Write the manifest, last and atomically, once every object is in its place with its size. RecordError."""
    entries = records.Manifest.from_json(json.loads(text), directory).object_entries
    parents = {directory}
    for entry in entries:
        path = posixpath.join(directory, entry.path)
        if os.stat(path).st_size != entry.size:
            raise records.RecordError("{}: not {} bytes any more".format(path, entry.size))
        parents.add(os.path.dirname(path))
    for parent in sorted(parents):
        records.sync_directory(parent)
    tidy(directory)
    records.write_bytes(posixpath.join(directory, records.MANIFEST), text.encode())


def tidy(directory: str) -> None:
    """Remove the lots' manifests."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if name.startswith(LOT):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(posixpath.join(directory, name))


def _answered(found: Mapping[str, Any], serial: int) -> bool:
    """Whether nothing more is to be waited for."""
    status = found["status"]
    if status is None or not found["alive"]:
        return not found["alive"]
    return bool(status["state"] in records.ENDED or status["refused"] >= serial)


def _newest(paths: records.RunPaths, attempt: int, since: int) -> Optional[str]:
    """The attempt's newest checkpoint directory from step ``since`` on, complete or not."""
    try:
        names = os.listdir(paths.checkpoints)
    except FileNotFoundError:
        return None
    steps = [parsed[0] for parsed in map(records.parse_checkpoint_name, names) if parsed and parsed[1] == attempt]
    newest = max(steps, default=-1)
    return records.checkpoint_name(newest, attempt) if newest >= since else None


def _whole(directory: str, sizes: Mapping[str, int], known: "set[str]") -> Tuple[List[Tuple[str, int]], int]:
    """Objects that have all their bytes, as many as go into one lot, and their bytes."""
    found: List[Tuple[str, int]] = []
    total = 0
    for path, size in sizes.items():
        if path in known or not records.safe_relative(path):
            continue
        try:
            if os.stat(posixpath.join(directory, path)).st_size != size:
                continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        found.append((path, size))
        total += size
        if total >= AT_ONCE:
            break
    return found, total


def _hashed(directory: str, objects: Sequence[Tuple[str, int]]) -> List[Dict[str, Any]]:
    def hashed(entry: Tuple[str, int]) -> Optional[Dict[str, Any]]:
        path, size = entry
        try:
            return {"path": path, "size": size, "sha256": file_sha256(posixpath.join(directory, path))}
        except FileNotFoundError:  # the save was given up
            return None

    with ThreadPoolExecutor(HASHERS) as pool:
        return [entry for entry in pool.map(hashed, objects) if entry is not None]


def _describe(directory: str, objects: Sequence[Mapping[str, Any]], lot: int) -> str:
    name = "{}{}.json".format(LOT, lot)
    records.write_json(posixpath.join(directory, name), {"objects": list(objects)}, durable=False)
    return name
