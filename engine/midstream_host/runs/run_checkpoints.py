"""Checkpoints of a run on this host: complete, partial, damaged, pinned.

Runs on the host; standard library only.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any, Collection, Dict, List, Optional, Tuple

from midstream_core import records
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_host.runs import checkpoint_pins, damaged_records
from midstream_host.runs.damaged_records import names_in, signature
from midstream_host.shapes import Annotated

CheckpointName = Annotated[str, records.CHECKPOINT_NAME]


# By name: the file's signature, and the checkpoint without its pin and the fence's judgement.
KnownManifests = Dict[str, Tuple[Any, ListedCheckpoint]]


def checkpoints(paths: records.RunPaths, cached: Optional[KnownManifests] = None) -> List[ListedCheckpoint]:
    """Every directory of a checkpoint, oldest first: complete, partial or damaged.

    ``cached`` keeps the summaries of manifests for the next call: a file that has not changed is not read again.
    """
    cached = {} if cached is None else cached
    names = set(names_in(paths.checkpoints))
    while True:
        listed = _listed(paths, names, cached)
        before, names = names, set(names_in(paths.checkpoints))
        # Retention may have removed the newest that was listed, after one that was not listed was saved.
        if names == before or any(entry.complete for entry in listed):
            return listed


def _listed(paths: records.RunPaths, names: Collection[str], cached: KnownManifests) -> List[ListedCheckpoint]:
    fence = records.Fence.read_or_none(paths.fence)
    pins = checkpoint_pins.pinned(paths)
    listed: List[ListedCheckpoint] = []
    for name in names:
        checkpoint = described(paths, name, cached)
        if checkpoint is None:
            continue
        accepted = checkpoint.complete and (
            fence is None or fence.accepts(checkpoint.epoch, checkpoint.step, checkpoint.start)
        )
        listed.append(_judged(checkpoint, name in pins, accepted))
    for name in set(cached).difference(names):
        del cached[name]
    return sorted(listed, key=lambda entry: entry.order)


@functools.lru_cache(maxsize=1024)
def _judged(checkpoint: ListedCheckpoint, pinned: bool, accepted: bool) -> ListedCheckpoint:
    return dataclasses.replace(checkpoint, pinned=pinned, accepted=accepted)


def described(
    paths: records.RunPaths, name: str, cached: Optional[KnownManifests] = None, *, path: str = ""
) -> Optional[ListedCheckpoint]:
    """A checkpoint by its manifest, without its pin and the fence's judgement.

    None: it has not the name of a checkpoint. ``path``: its manifest, where that is in another folder.
    """
    parsed = records.parse_checkpoint_name(name)
    if parsed is None:
        return None
    cached = {} if cached is None else cached
    path = path or f"{paths.checkpoints}/{name}/{records.MANIFEST}"
    partial = _partial(name, *parsed)
    mark = None
    try:
        mark = signature(path)
        if name not in cached or cached[name][0] != mark:
            cached[name] = (mark, _complete(partial, records.Manifest.read(path)))
        return cached[name][1]
    except (FileNotFoundError, NotADirectoryError):
        return _damaged(partial, "a symbolic link to nothing", path) if os.path.islink(path) else partial
    except records.RecordError as error:
        cached[name] = (mark, _damaged(partial, str(error), path))
        return cached[name][1]
    except OSError as error:
        return _damaged(partial, "cannot be read ({})".format(error.strerror), path)


@functools.lru_cache(maxsize=1024)
def _partial(name: str, step: int, attempt: int) -> ListedCheckpoint:
    return ListedCheckpoint(name, step, attempt, False, False)


def _complete(partial: ListedCheckpoint, manifest: records.Manifest) -> ListedCheckpoint:
    if manifest.name != partial.name:
        return _damaged(partial, "it is the manifest of {}".format(manifest.name), partial.name)
    return dataclasses.replace(
        partial, complete=True, epoch=manifest.epoch, size=manifest.size, created=manifest.created,
        root_digest=manifest.root_digest, start=manifest.start,
    )  # fmt: skip


def _damaged(partial: ListedCheckpoint, why: str, path: str) -> ListedCheckpoint:
    prefix = path + ": "
    why = " ".join(why[len(prefix) :].split() if why.startswith(prefix) else why.split())
    return dataclasses.replace(partial, damaged="{}: {}".format(records.MANIFEST, why[: damaged_records.MAX_REASON]))
