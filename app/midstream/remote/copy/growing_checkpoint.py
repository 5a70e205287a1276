"""A checkpoint that is still being written, looked at on the machine where it grows.

An object has one size at every step of a run, so what an earlier checkpoint says of it tells when it is whole. Only
the manifest, which comes last, says that it is what was meant: whoever copies ahead compares in the end.
"""

from __future__ import annotations

import json
import os
import posixpath
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Mapping, Optional, Set

from midstream.remote.copy import allowlist
from midstream.remote.copy.object_files import NotPlain, emit, end_with_operator, object_sha256
from midstream.remote.copy.staging import Stage, sync_objects
from midstream.remote.runs import ownership, run_state
from midstream.remote.verify.objects import parse_manifest
from midstream.remote.verify.tree import HASHERS
from midstream_engine import records

POLL = 0.02  # seconds between two looks


def follow(root: str, run_id: str, attempt: int, serial: int, since: int, sizes: Mapping[str, int]) -> int:
    """A program: what becomes of an attempt that was given order ``serial``, until it has answered.

    Lines: ``named`` (``name`` of the newest checkpoint of the attempt from step ``since`` on, once it is begun);
    ``whole`` (``name``, ``objects``: ``[{path, size, sha256}]``, some of those in ``sizes`` (path -> bytes) that have
    all their bytes now); and last ``answered``, once the order was carried out or refused, or the attempt has ended:
    ``status``, ``alive``, ``described`` and ``mover`` as of ``runs``."""
    end_with_operator()
    paths = records.RunPaths(root, run_id)
    name = None  # type: Optional[str]
    told = set()  # type: Set[str]
    over = threading.Event()
    with ThreadPoolExecutor(HASHERS) as pool:

        def tell(directory: str, path: str) -> None:
            if over.is_set():  # the manifest says it, too
                return
            try:
                entry = {"path": path, "size": sizes[path], "sha256": object_sha256(directory, path)}
            except OSError:  # the save was given up; the manifest decides
                return
            emit("whole", name=posixpath.basename(directory), objects=[entry])

        while True:
            found = run_state.status(root, run_id, attempt)
            newest = _newest(paths, attempt, since) if sizes else None
            if newest is not None and newest != name:
                name, told = newest, set()
                emit("named", name=name)
            if name is not None:
                for path in _whole(paths.checkpoint(name), sizes, told):
                    told.add(path)
                    pool.submit(tell, paths.checkpoint(name), path)
            if _answered(found, serial):
                over.set()
                break
            time.sleep(POLL)
    # Whoever asked wants to know next how the run lies there now.
    lock = ownership.migration_lock(root, run_id)
    emit("answered", **dict(found, described=run_state.describe(root, run_id), migration_lock=lock))
    return 0


def rest(directory: str, sent: Mapping[str, str]) -> Dict[str, Any]:
    """Of a complete checkpoint: ``{"text", "objects"}``, its manifest's text, and the objects whose hash is not the one
    in ``sent`` (path -> SHA-256)."""
    with open(posixpath.join(directory, records.MANIFEST), encoding="utf-8", newline="") as file:
        text = file.read()
    entries = records.Manifest.from_json(json.loads(text), directory).object_entries
    objects = [
        {"path": entry.path, "size": entry.size, "sha256": entry.sha256}
        for entry in entries
        if sent.get(entry.path) != entry.sha256
    ]
    return {"text": text, "objects": objects}


def commit(directory: str, text: str) -> None:
    """Write the manifest, last and atomically, once every object is on the disk with its size. ValueError; NotPlain."""
    records.Manifest.from_json(json.loads(text), directory)
    sync_objects(directory, parse_manifest(text, directory, records.MANIFEST, allowlist.CHECKPOINT)[1])
    if os.path.islink(directory):
        raise NotPlain(directory)
    records.write_bytes(posixpath.join(directory, records.MANIFEST), text.encode())


def tidy(directory: str) -> None:
    """Remove what copies that are dead had on its way below ``directory``."""
    Stage(directory, "tidy").adopt([])


def _answered(found: Mapping[str, Any], serial: int) -> bool:
    """Whether nothing more is to be waited for."""
    status = found["status"]
    if status is None or not found["running"]:
        return not found["running"]
    return bool(status["state"] in records.ENDED or status["rejected"] >= serial)


def _newest(paths: records.RunPaths, attempt: int, since: int) -> Optional[str]:
    """The attempt's newest checkpoint directory from step ``since`` on, complete or not."""
    try:
        names = os.listdir(paths.checkpoints)
    except FileNotFoundError:
        return None
    steps = [parsed[0] for parsed in map(records.parse_checkpoint_name, names) if parsed and parsed[1] == attempt]
    newest = max(steps, default=-1)
    return records.checkpoint_name(newest, attempt) if newest >= since else None


def _whole(directory: str, sizes: Mapping[str, int], known: Set[str]) -> List[str]:
    """Objects beside the ``known`` ones that have all their bytes."""
    found = []
    for path, size in sizes.items():
        if path in known or not records.safe_relative(path):
            continue
        try:
            if os.stat(posixpath.join(directory, path)).st_size == size:
                found.append(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found
