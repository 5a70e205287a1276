"""Pins: checkpoints that retention does not delete before a time."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from typing import Dict

from midstream_core import records
from midstream_host.declarations import repeatable


def pinned(paths: records.RunPaths) -> Dict[str, float]:
    """Pinned checkpoints, each with the time at which its pin expires (UTC seconds)."""
    try:
        names = os.listdir(paths.pins)
    except FileNotFoundError:
        return {}
    pins: Dict[str, float] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, records.RecordError):
            pin = records.Pin.read(posixpath.join(paths.pins, name))
            if pin.expires > time.time():
                pins[pin.checkpoint] = pin.expires
    return pins


@repeatable("it writes the same pin again")
def pin(root: str, run_id: str, migration: str, checkpoint: str, expires: float) -> None:
    """Keep retention from deleting a checkpoint until ``expires``.

    Args:
        root: Root directory of the host.
        run_id: The run.
        migration: The migration that needs the checkpoint; it has one pin.
        checkpoint: Name of the checkpoint.
        expires: UTC seconds.
    """
    paths = records.RunPaths(root, run_id)
    os.makedirs(paths.pins, exist_ok=True)
    records.Pin(checkpoint, expires).write(_pin_path(paths, migration))


@repeatable("what is removed stays removed")
def unpin(root: str, run_id: str, migration: str) -> None:
    """Remove the pin of a migration."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_pin_path(records.RunPaths(root, run_id), migration))


def _pin_path(paths: records.RunPaths, migration: str) -> str:
    return posixpath.join(paths.pins, records.check_run_id(migration) + ".json")
