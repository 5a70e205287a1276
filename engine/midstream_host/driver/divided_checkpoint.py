"""Divide a placed checkpoint over the processes of an attempt.

Its trainer loads it on the number alone that saved it.
"""

from __future__ import annotations

import os
import posixpath
import shutil
from typing import Callable, Dict

from midstream_core import records
from midstream_host.driver.attempt_place import say
from midstream_host.driver.reshard.errors import ReshardError
from midstream_host.driver.reshard.reshard import Resharded, reshard
from midstream_host.driver.reshard.stored_ranks import stored_ranks
from midstream_host.driver.work_directory import Divided, PlacedCheckpoint

_NEW = "divided-"


def divide(restored: PlacedCheckpoint, rule: str, world: int) -> PlacedCheckpoint:
    """Return the checkpoint for a number of processes.

    It takes the place of the one that another number has saved.

    Args:
        restored: The checkpoint with the bytes that were recorded.
        rule: Its rule.
        world: Processes of the attempt.

    Raises:
        RecordError: It cannot be divided; the message says why.
    """
    divider = _DIVIDERS.get(rule)
    return divider(restored, world) if divider is not None else restored


def _divide_deepspeed(restored: PlacedCheckpoint, world: int) -> PlacedCheckpoint:
    path = restored.path
    try:
        saved = stored_ranks(path)
        if saved.world == world:
            return restored
        if world % saved.model:
            raise ReshardError(
                "{} processes cannot have the {} model-parallel ranks of the checkpoint".format(world, saved.model)
            )
        folder, name = posixpath.split(path)
        new = posixpath.join(folder, "." + _NEW + name)
        shutil.rmtree(new, ignore_errors=True)  # of a driver that was killed
        result = reshard(path, new, world // saved.model)
        shutil.rmtree(path)
        os.rename(new, path)
        records.sync_directory(folder)
    except (ReshardError, OSError) as error:
        raise records.RecordError(
            "the checkpoint of {} processes cannot be divided over {}: {}".format(_count(path), world, error)
        ) from None
    say(_line(result, restored.step))
    inside = posixpath.relpath(path, restored.directory)
    files = [posixpath.join(inside, name) for name in _files(path)]
    others = [file for file in restored.files if not file.startswith(inside + "/")]
    divided = Divided(result.ranks_before, result.ranks, result.digests)
    return restored._replace(files=sorted([*others, *files]), divided=divided)


def _count(path: str) -> str:
    try:
        return str(stored_ranks(path).world)
    except (ReshardError, OSError):
        return "another number of"


def _files(path: str) -> "list[str]":
    return [
        posixpath.relpath(posixpath.join(folder, name), path) for folder, _, names in os.walk(path) for name in names
    ]


def _line(result: Resharded, step: int) -> str:
    numbers = ", ".join("{} {}".format(kind, digest[:16]) for kind, digest in result.digests.items())
    line = "checkpoint of step {}: divided over {} data-parallel processes, saved by {}; equal before and after: {}"
    return line.format(step, result.ranks, result.ranks_before, numbers or "every file")


_DIVIDERS: Dict[str, Callable[[PlacedCheckpoint, int], PlacedCheckpoint]] = {"deepspeed": _divide_deepspeed}
