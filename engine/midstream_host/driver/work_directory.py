"""Working directory of a trainer: code and data that travel, and a checkpoint.

The trainer resumes from this checkpoint.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from typing import Dict, List, NamedTuple, Optional, Sequence, Set

from midstream_core import records
from midstream_core.json_types import object_or_empty, optional_list, str_of
from midstream_host.driver.checkpoints.search import GIVEN_UP
from midstream_host.driver.recorded_checkpoints import FILES, digest_of, place, write_newest_file

WORK = "work"  # below the run's directory


class MismatchError(Exception):
    """A checkpoint's bytes are not those that were recorded."""


class Divided(NamedTuple):
    """A division over other data-parallel processes.

    ``digests``: SHA-256 of each kind of number, equal before and after.
    """

    before: int
    after: int
    digests: Dict[str, str]


class PlacedCheckpoint(NamedTuple):
    """A checkpoint that was placed where the trainer reads it.

    ``files``: relative to ``directory``. ``divided``: how its files differ from those that were recorded.
    """

    path: str  # absolute
    step: int
    root_digest: str  # recomputed from the bytes that were placed
    recorded: str
    directory: str
    files: List[str]
    divided: Optional[Divided] = None


def bring_files(root: str, digest: str, directory: str) -> None:
    """Copy the files that travel to the working directory, where they differ.

    Files are not linked: a trainer may write its own code's directory. Raises MismatchError for other bytes than
    recorded.
    """
    tree = posixpath.join(root, "data", digest)
    described = records.read_json(posixpath.join(tree, records.MANIFEST))
    for value in optional_list(object_or_empty(described)["objects"]):
        entry = records.ObjectEntry.from_json(value)
        if not entry.path.startswith(FILES + "/"):
            continue
        relative = entry.path[len(FILES) + 1 :]
        target = posixpath.join(directory, relative)
        if os.path.isfile(target) and digest_of(target)[0] == entry.sha256:
            continue
        os.makedirs(posixpath.dirname(target), exist_ok=True)
        temporary = target + ".midstream-new"
        place(posixpath.join(tree, entry.path), temporary, link=False)
        if digest_of(temporary)[0] != entry.sha256:
            os.unlink(temporary)
            raise MismatchError("{}: {} has other bytes than its manifest says".format(tree, relative))
        os.replace(temporary, target)


def travelling(root: str, digest: str) -> Set[str]:
    """Return the files that travel, and their folders.

    Their paths are relative to the working directory. Empty without a ``digest``, or where they are not
    on this host. Raises RecordError, OSError.
    """
    described = records.read_json_or_none(posixpath.join(root, "data", digest, records.MANIFEST)) if digest else None
    travelling_paths: Set[str] = set()
    for value in optional_list(object_or_empty(described)["objects"]) if described is not None else ():
        path = records.ObjectEntry.from_json(value).path
        relative = path[len(FILES) + 1 :] if path.startswith(FILES + "/") else ""
        while relative and relative not in travelling_paths:
            travelling_paths.add(relative)
            relative = posixpath.dirname(relative)
    return travelling_paths


def place_checkpoint(paths: records.RunPaths, name: str, directory: str) -> PlacedCheckpoint:
    """Place a recorded checkpoint below the trainer's directory of checkpoints.

    Call `set_aside` first: what is there belongs to steps that are given up, and a trainer that looks for its newest
    checkpoint would find it. Raises MismatchError for other bytes than recorded, or a path that leaves the directory.
    """
    source = paths.checkpoint(name)
    manifest = records.Manifest.read(posixpath.join(source, records.MANIFEST))
    state = records.checkpoint_state(source)
    main_path, files = str_of(state["path"]), object_or_empty(state["files"])
    if not records.safe_relative(main_path):
        raise MismatchError("{}: {} leaves the directory".format(name, ascii(main_path)))
    os.makedirs(directory, exist_ok=True)
    measured: Dict[str, str] = {}
    for path in sorted(files):
        if not records.safe_relative(path):
            raise MismatchError("{}: {} leaves the directory".format(name, ascii(path)))
        target = posixpath.join(directory, path)
        os.makedirs(posixpath.dirname(target), exist_ok=True)
        place(posixpath.join(source, FILES, path), target, link=False)
        measured[path] = digest_of(target)[0]
    write_newest_file(str(state.get("rule", "")), directory, main_path)
    digest = records.root_digest([], {}, {**state, "files": measured})
    path = posixpath.join(directory, main_path)
    return PlacedCheckpoint(path, manifest.step, digest, manifest.root_digest, directory, sorted(measured))


def placed_checkpoint(paths: records.RunPaths, name: str, directory: str) -> PlacedCheckpoint:
    """Return what `place_checkpoint` has placed on another node.

    Raises RecordError, MismatchError.
    """
    source = paths.checkpoint(name)
    manifest = records.Manifest.read(posixpath.join(source, records.MANIFEST))
    state = records.checkpoint_state(source)
    main_path, files = str_of(state["path"]), object_or_empty(state["files"])
    if not records.safe_relative(main_path):
        raise MismatchError("{}: {} leaves the directory".format(name, ascii(main_path)))
    path = posixpath.join(directory, main_path)
    digest = manifest.root_digest
    return PlacedCheckpoint(path, manifest.step, digest, digest, directory, sorted(files))


def set_aside(directory: str, attempt: int, paths: Optional[Sequence[str]] = None) -> None:
    """Move what earlier attempts have written to a directory of its own.

    Nothing is deleted.

    ``paths``: what is moved, relative to ``directory``, a directory before what is in it; None: all.
    """
    aside = posixpath.join(directory, "{}{}".format(GIVEN_UP, attempt))
    for path in (os.listdir(directory) if os.path.isdir(directory) else []) if paths is None else paths:
        source = posixpath.join(directory, path)
        if not path.startswith(GIVEN_UP) and os.path.lexists(source):
            os.makedirs(posixpath.dirname(posixpath.join(aside, path)), exist_ok=True)
            shutil.move(source, posixpath.join(aside, path))
