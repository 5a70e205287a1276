"""Target's side of a copy: find objects, name those to send, write the manifest.

The manifest is written last.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import time
from typing import Iterator, List, Optional, Sequence, Set, Tuple

from midstream_host import allowlist
from midstream_host.copy import local_reuse
from midstream_host.copy.range_assembly import Assemblies
from midstream_host.copy.staging import (
    SLACK,
    Stage,
    chunk_hashes,
    free_bytes,
    is_part,
    part_name,
    problem,
    sync_directory,
    sync_objects,
)
from midstream_host.copy.stdin_lines import IDLE_TIMEOUT, StdinLines
from midstream_host.copy_items import CopyObject
from midstream_host.declarations import program
from midstream_host.object_files import emit, inside, open_plain
from midstream_host.verify.objects import checked

REPORT_OBJECTS = 512  # objects in one line


@program
def serve(
    directory: str,
    generation: str,
    objects: Sequence[CopyObject],
    manifest: Optional[str],
    text: str,
    root: str,
    kind: str,
    survey: bool = True,
) -> int:
    """Run the target's side of a copy until the app commits or ends it.

    A program. Lines from the app: ``{"do": "landed", "ranges": [[path, offset, length], ...]}``, ``{"do": "commit"}``,
    ``{"do": "heartbeat"}``. Lines to it: ``present`` (``objects`` that exist with the right hash), ``held`` (objects of
    another tree that were linked or copied), ``part`` (``path``, ``chunks``: part of an object from an earlier copy),
    ``ready``, ``placed`` (verified and named), ``committed``; or ``problem`` (kinds other, full, hash, unrequested,
    system).

    Args:
        directory: The target directory.
        generation: Name of the staging directory of this copy.
        objects: ``{path, size, sha256}`` of the objects to copy.
        manifest: Name of the manifest; None: the tree has none.
        text: The manifest's text.
        root: Root whose other trees are searched for objects; empty: none.
        kind: What the copy may contain (`allowlist`).
        survey: Whether to look for objects and parts that exist already.
    """
    lines = StdinLines(idle_timeout=IDLE_TIMEOUT, last={"do": "end"})
    stage = Stage(directory, generation)
    try:
        objects = allowlist.check_all(kind, objects)
        if not _prepared(stage, objects, manifest, text, root, survey):
            return 1
        by_path = {entry["path"]: entry for entry in objects}
        assemblies = Assemblies(stage)
        while True:
            line = lines.get()
            assert line is not None
            if line["do"] == "landed":
                for path, offset, length in line["ranges"]:
                    assemblies.landed(by_path[path], offset, length)
            elif line["do"] == "commit":
                if not assemblies.finish():
                    return 1
                commit(stage, manifest, text, objects)
                break
            elif line["do"] == "end":
                return 0
    except OSError as error:
        problem(error, directory)
        return 1
    except allowlist.NotAllowedError as error:
        emit("problem", kind="unrequested", path=allowlist.shown(error.path), message=str(error))
        return 1
    except ValueError as error:
        emit("problem", kind="system", message=str(error))
        return 1
    finally:
        stage.leave()
    emit("committed")
    return 0


def _prepared(
    stage: Stage, objects: Sequence[CopyObject], manifest: Optional[str], text: str, root: str, survey: bool
) -> bool:
    directory = stage.directory
    there = None if manifest is None else _text_or_none(posixpath.join(directory, manifest))
    if there is not None and _named(there) not in (None, _named(text)):
        emit("problem", kind="other")
        return False
    absent = list(objects)
    if survey and os.path.isdir(directory):
        there_already = [entry for entry in objects if os.path.lexists(inside(directory, entry["path"]))]
        present = _reported("present", _right(directory, there_already))
        absent = [entry for entry in objects if entry["path"] not in present]
        stage.adopt(absent)
    parts: List[CopyObject] = []
    if stage.exists():
        parts = [entry for entry in absent if is_part(posixpath.join(stage.here, part_name(entry)))]
    begun = sum(os.stat(posixpath.join(stage.here, part_name(entry))).st_blocks * 512 for entry in parts)
    needed = sum(entry["size"] for entry in absent)
    if survey and root and absent:
        held = _reported("held", local_reuse.reuse(stage, root, absent))
        absent = [entry for entry in absent if entry["path"] not in held]
        needed = sum(entry["size"] for entry in absent)
    needed += SLACK
    free = free_bytes(directory)
    if needed > free + begun:
        emit("problem", kind="full", needed=needed, free=free + begun)
        return False
    os.makedirs(directory, exist_ok=True)
    stage.enter()
    for entry in parts:
        if entry in absent:
            emit("part", path=entry["path"], chunks=chunk_hashes(stage.part(entry), entry["size"]))
    emit("ready")
    return True


def _right(directory: str, objects: Sequence[CopyObject]) -> Iterator[str]:
    return (entry["path"] for entry, wrong in checked(directory, objects) if wrong is None)


def _reported(event: str, paths: Iterator[str]) -> Set[str]:
    """Report ``paths`` in groups, and return all of them."""
    named_files: Set[str] = set()
    lot: List[str] = []
    reported_at = time.monotonic()
    for path in paths:
        named_files.add(path)
        lot.append(path)
        if len(lot) >= REPORT_OBJECTS or time.monotonic() - reported_at > 0.1:
            emit(event, objects=lot)
            lot, reported_at = [], time.monotonic()
    if lot:
        emit(event, objects=lot)
    return named_files


def _named(manifest: str) -> Optional[List[Tuple[str, int, str]]]:
    """Return the objects that a manifest lists.

    Return None where it is damaged: then it may be replaced.
    """
    try:
        return sorted((entry["path"], entry["size"], entry["sha256"]) for entry in json.loads(manifest)["objects"])
    except (ValueError, KeyError, TypeError):
        return None


def _text_or_none(path: str) -> Optional[str]:
    try:
        with os.fdopen(open_plain(path), encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except FileNotFoundError:
        return None


def commit(stage: Stage, manifest: Optional[str], text: str, objects: Sequence[CopyObject]) -> None:
    """Sync every object, then write the manifest atomically.

    Raises ValueError on a wrong size.
    """
    sync_objects(stage.directory, objects)
    if manifest is not None:
        stage.write(manifest, text.encode())
        sync_directory(stage.directory)
        # The tree's folder, which the copy may have created, is an entry of the one above.
        with contextlib.suppress(PermissionError):  # it may not be readable
            sync_directory(posixpath.dirname(posixpath.abspath(stage.directory)))
