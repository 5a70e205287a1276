"""Checkpoints of a run on this host: complete, partial, damaged, pinned.

Runs on the host; standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
import time
from typing import Any, Collection, Dict, List, Optional, Tuple

from midstream_core import records
from midstream_host.runs import damaged_records
from midstream_host.runs.damaged_records import names_in, signature
from midstream_host.shapes import Annotated

CheckpointName = Annotated[str, records.CHECKPOINT_NAME]


@dataclasses.dataclass(frozen=True)
class ManifestSummary:
    """Fields of a manifest that a list of checkpoints shows.

    Without a manifest the fields have their defaults.
    """

    complete: bool = False
    epoch: int = 0
    size: int = 0  # bytes
    created: float = 0.0
    root_digest: str = ""
    damaged: str = ""  # why the manifest cannot be read
    start: int = 0  # number of the start that committed it


@dataclasses.dataclass(frozen=True)
class CheckpointSummary:
    """A directory of a checkpoint; ``accepted`` is true where the fence accepts it."""

    name: CheckpointName
    step: int
    attempt: int
    pinned: bool
    complete: bool
    accepted: bool
    epoch: int
    size: int  # bytes
    created: float
    root_digest: str
    damaged: str


KnownManifests = Dict[str, Tuple[Any, ManifestSummary]]  # by name: the file's signature and its summary


def checkpoints(paths: records.RunPaths, known: Optional[KnownManifests] = None) -> List[CheckpointSummary]:
    """Every directory of a checkpoint, oldest first: complete, partial or damaged.

    ``known`` keeps the summaries of manifests for the next call: a file that has not changed is not read again.
    """
    known = {} if known is None else known
    names = set(names_in(paths.checkpoints))
    while True:
        found = _listed(paths, names, known)
        before, names = names, set(names_in(paths.checkpoints))
        # Retention may have removed the newest that was listed, after one that was not listed was saved.
        if names == before or any(entry.complete for entry in found):
            return found


def _listed(paths: records.RunPaths, names: Collection[str], known: KnownManifests) -> List[CheckpointSummary]:
    fence = records.Fence.read_or_none(paths.fence)
    pins = pinned(paths)
    found: List[CheckpointSummary] = []
    for name in names:
        parsed = records.parse_checkpoint_name(name)
        if parsed is None:
            continue
        step, attempt = parsed
        manifest = manifest_summary(posixpath.join(paths.checkpoint(name), records.MANIFEST), name, known)
        accepted = manifest.complete and (fence is None or fence.accepts(manifest.epoch, step, manifest.start))
        found.append(
            CheckpointSummary(
                name=name,
                step=step,
                attempt=attempt,
                pinned=name in pins,
                complete=manifest.complete,
                accepted=accepted,
                epoch=manifest.epoch,
                size=manifest.size,
                created=manifest.created,
                root_digest=manifest.root_digest,
                damaged=manifest.damaged,
            )
        )
    for name in set(known).difference(names):
        del known[name]
    return sorted(found, key=lambda entry: (entry.step, entry.attempt))


def manifest_summary(path: str, name: str, known: KnownManifests) -> ManifestSummary:
    """Summary of a manifest; the defaults where there is none."""
    mark = None
    try:
        mark = signature(path)
        if name not in known or known[name][0] != mark:
            known[name] = (mark, _short(records.Manifest.read(path), name))
        return known[name][1]
    except (FileNotFoundError, NotADirectoryError):
        return _damaged("a symbolic link to nothing", path) if os.path.islink(path) else ManifestSummary()
    except records.RecordError as error:
        known[name] = (mark, _damaged(str(error), path))
        return known[name][1]
    except OSError as error:
        return _damaged("cannot be read ({})".format(error.strerror), path)


def _short(manifest: records.Manifest, name: str) -> ManifestSummary:
    if manifest.name != name:
        return _damaged("it is the manifest of {}".format(manifest.name), name)
    return ManifestSummary(
        True, manifest.epoch, manifest.size, manifest.created, manifest.root_digest, start=manifest.start
    )


def _damaged(why: str, path: str) -> ManifestSummary:
    prefix = path + ": "
    why = " ".join(why[len(prefix) :].split() if why.startswith(prefix) else why.split())
    return ManifestSummary(damaged="{}: {}".format(records.MANIFEST, why[: damaged_records.LONGEST]))


def pinned(paths: records.RunPaths) -> Dict[str, float]:
    """Pinned checkpoints, each with the time at which its pin expires (UTC seconds)."""
    try:
        names = os.listdir(paths.pins)
    except FileNotFoundError:
        return {}
    pins: Dict[str, float] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, records.RecordError):
            one = records.Pin.read(posixpath.join(paths.pins, name))
            if one.expires > time.time():
                pins[one.checkpoint] = one.expires
    return pins
