"""Copying a checkpoint while the engine writes it.

An object has the same size at every step of a run, so an earlier checkpoint gives the size at which it is complete.
Only the manifest, which is written last, has the hashes: objects that were copied before it are compared with it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import posixpath
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import List, Mapping, Optional, Set

from midstream_core import records
from midstream_host import allowlist
from midstream_host.copy.staging import Stage, sync_objects
from midstream_host.declarations import MANIFEST_LIMIT, program, reads, repeatable
from midstream_host.object_files import HASHERS, NotPlainError, emit, end_with_operator, object_sha256
from midstream_host.runs import ownership, run_state
from midstream_host.shapes import Text
from midstream_host.verify.objects import parse_manifest

POLL_INTERVAL = 0.02  # seconds


@dataclasses.dataclass(frozen=True)
class Answered(run_state.ProcessState):
    """Last line of `follow`: attempt after the command, run, and its migration lock."""

    described: run_state.RunDescription
    migration_lock: Optional[records.MigrationLock]


@dataclasses.dataclass(frozen=True)
class CheckpointRest:
    """Text of a checkpoint's manifest, and the objects that were not sent ahead of it."""

    text: Text
    objects: List[records.ObjectEntry]


@program
def follow(root: str, run_id: str, attempt: int, sequence: int, since: int, sizes: Mapping[str, int]) -> int:
    """Report an attempt's growing checkpoint until command ``sequence`` is answered.

    A program. The reports end when the attempt has carried out or rejected the command, or has exited. The lines are
    ``named`` (``name`` of the newest checkpoint, once it is begun), ``complete`` (``name``, ``objects``: ``[{path,
    size, sha256}]``) and last ``answered`` (the fields of `Answered`).

    Args:
        root: The root directory of the host.
        run_id: The run.
        attempt: The attempt that has the command.
        sequence: The command's number.
        since: Checkpoints of earlier steps are left out.
        sizes: Path -> bytes of the objects to report as they become complete.
    """
    end_with_operator()
    paths = records.RunPaths(root, run_id)
    name: Optional[str] = None
    reported: Set[str] = set()
    over = threading.Event()
    with ThreadPoolExecutor(HASHERS) as pool:

        def report(directory: str, path: str) -> None:
            if over.is_set():  # the manifest has it
                return
            try:
                entry = {"path": path, "size": sizes[path], "sha256": object_sha256(directory, path)}
            except OSError:  # the save was abandoned; the manifest decides
                return
            emit("complete", name=posixpath.basename(directory), objects=[entry])

        while True:
            process = run_state.status(root, run_id, attempt)
            newest = _newest(paths, attempt, since) if sizes else None
            if newest is not None and newest != name:
                name, reported = newest, set()
                emit("named", name=name)
            if name is not None:
                for path in _complete(paths.checkpoint(name), sizes, reported):
                    reported.add(path)
                    pool.submit(report, paths.checkpoint(name), path)
            if _answered(process, sequence):
                over.set()
                break
            time.sleep(POLL_INTERVAL)
    lock = ownership.migration_lock(root, run_id)
    described = run_state.describe(root, run_id)
    emit("answered", status=process.status, running=process.running, described=described, migration_lock=lock)
    return 0


@reads(limit=MANIFEST_LIMIT)
def rest(directory: str, sent: Mapping[str, str]) -> CheckpointRest:
    """Return a checkpoint's manifest and the objects that differ from ``sent``.

    ``sent`` maps paths to their SHA-256.
    """
    with open(posixpath.join(directory, records.MANIFEST), encoding="utf-8", newline="") as file:
        text = file.read()
    entries = records.Manifest.from_json(json.loads(text), directory).object_entries
    return CheckpointRest(text, [entry for entry in entries if sent.get(entry.path) != entry.sha256])


@repeatable("it writes the same manifest again")
def commit(directory: str, text: str) -> None:
    """Write the manifest last, atomically, once each object is on disk with its size.

    Raises ValueError where one is not, NotPlainError where the directory is a link.
    """
    records.Manifest.from_json(json.loads(text), directory)
    sync_objects(directory, parse_manifest(text, directory, records.MANIFEST, allowlist.CHECKPOINT)[1])
    if os.path.islink(directory):
        raise NotPlainError(directory)
    records.write_bytes(posixpath.join(directory, records.MANIFEST), text.encode())


@repeatable("what is removed stays removed")
def tidy(directory: str) -> None:
    """Remove the staging directories that ended copies left below ``directory``."""
    Stage(directory, "tidy").adopt([])


def _answered(process: run_state.ProcessState, sequence: int) -> bool:
    """Return whether the attempt exited, or carried out or rejected the command."""
    status = process.status
    if status is None or not process.running:
        return not process.running
    return status.state in records.ENDED or status.rejected >= sequence


def _newest(paths: records.RunPaths, attempt: int, since: int) -> Optional[str]:
    """Name of the attempt's newest checkpoint from step ``since`` on, complete or not."""
    try:
        names = os.listdir(paths.checkpoints)
    except FileNotFoundError:
        return None
    steps = [parsed[0] for parsed in map(records.parse_checkpoint_name, names) if parsed and parsed[1] == attempt]
    newest = max(steps, default=-1)
    return records.checkpoint_name(newest, attempt) if newest >= since else None


def _complete(directory: str, sizes: Mapping[str, int], names: Set[str]) -> List[str]:
    """Paths of objects that have all their bytes and are not among the ``names`` ones."""
    complete: List[str] = []
    for path, size in sizes.items():
        if path in names or not records.safe_relative(path):
            continue
        try:
            if os.stat(posixpath.join(directory, path)).st_size == size:
                complete.append(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return complete
