"""Retention: decide what to save, and delete what need not be kept.

*Temporary* checkpoints are saved every ``save_interval``; the previous one is deleted when the next is complete.
*Permanent* ones are saved by step and never deleted. Steps and times alone determine what is kept (:func:`to_delete`,
:meth:`KeepPolicy.is_permanent`); :class:`Retention` applies it to a run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from midstream_core.attempt.errors import CheckpointError
from midstream_core.attempt.save_fence import read_fence
from midstream_core.listed_checkpoint import ListedCheckpoint
from midstream_core.records import Fence, Pin, RecordError, RunPaths, locked, parse_checkpoint_name
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints
from midstream_engine.checkpoint.stores import bucket_fence, in_bucket, open_checkpoints
from midstream_engine.checkpoint.stores.checkpoint_store import TRASH, RunCheckpoints
from midstream_engine.config.keep_policy import KeepPolicy, Kind

Own = tuple[int, int]  # epoch and start of the caller


def to_delete(
    policy: KeepPolicy,
    saved: Collection[ListedCheckpoint],
    fence: Fence | None,
    pinned: Collection[str],
    own: Own | None = None,
) -> list[str]:
    """Return the names of the checkpoints to delete, oldest first.

    A checkpoint is deleted if it is temporary, accepted by the fence, not pinned, and not the newest accepted one. The
    list is empty once a newer start than ``own`` has the run.

    A checkpoint that the fence does not accept is not in this lineage; only the user deletes it.
    """
    if own is not None and fence is not None and fence.order > own:
        return []
    accepted = [entry for entry in saved if fence is None or fence.accepts(entry.epoch, entry.step, entry.start)]
    accepted.sort(key=lambda entry: entry.order)
    return [entry.name for entry in accepted[:-1] if not policy.is_permanent(entry.step) and entry.name not in pinned]


class Retention:
    """A retention policy applied to one run, with the time of the last save.

    Times are seconds of the caller's clock.
    """

    def __init__(self, policy: KeepPolicy, started: float) -> None:
        """Start at ``started``; the first temporary save is due ``save_interval`` later."""
        self.policy = policy
        self._last_saved = started

    def decide(self, step: int, now: float) -> Kind | None:
        """Return what to save at this step boundary, None for nothing."""
        return self.policy.kind(step, now, self._last_saved)

    def saved(self, now: float) -> None:
        """Record that a checkpoint of any kind was begun at ``now``."""
        self._last_saved = now

    def prune(self, paths: RunPaths, now: float | None = None, own: Own | None = None) -> list[str]:
        """Delete the checkpoints that need not be retained; return their names.

        ``now``: UTC seconds, for the expiry of pins. ``own``: epoch and start of the caller, which deletes nothing once
        a newer start has the run.

        A checkpoint is moved to the trash first, and the pins are read again. So a pin that is set at any moment either
        keeps its checkpoint or does not find it: the process that sets a pin checks afterwards that it exists.
        """
        store = open_checkpoints(paths.checkpoints)
        if not store.names():
            return []
        when = time.time() if now is None else now
        deleted = empty_trash(store, paths, when)  # of a call that was killed
        with locked(paths.lock):
            saved = [checkpoint for checkpoint in list_checkpoints(paths) if checkpoint.complete]
            fence = read_fence(paths)
            if in_bucket(paths.checkpoints):
                fence = bucket_fence.newest_fence(paths, fence)
            names = to_delete(self.policy, saved, fence, read_pins(paths, when), own)
            for name in names:
                store.set_aside(name)
        return deleted + empty_trash(store, paths, when)


def empty_trash(store: RunCheckpoints, paths: RunPaths, when: float) -> list[str]:
    """Delete what is in the trash, or move it back if it has been pinned.

    Returns the names that were deleted. ``when``: UTC seconds, for the expiry of pins. Raises CheckpointError, OSError.
    """
    deleted: list[str] = []
    for entry in store.names():
        name = entry.removeprefix(TRASH)
        if not entry.startswith(TRASH) or parse_checkpoint_name(name) is None:
            continue
        if name in read_pins(paths, when) and store.bring_back(name):
            continue
        store.empty(name)
        deleted.append(name)
    return deleted


def read_pins(paths: RunPaths, now: float) -> set[str]:
    """Return the names of the checkpoints that are pinned at ``now`` (UTC seconds).

    Pins are on this host or in the checkpoints' bucket.

    Raises:
        CheckpointError: A pin cannot be read, so its checkpoint is unknown and nothing may be deleted.
    """
    try:
        files = os.listdir(paths.pins)
    except FileNotFoundError:
        files = []
    try:
        pins = [Pin.read_or_none(os.path.join(paths.pins, file)) for file in files if file.endswith(".json")]
        names = {pin.checkpoint for pin in pins if pin is not None and pin.expires > now}
        if in_bucket(paths.checkpoints):
            names |= bucket_fence.read_pins(paths, now)
    except (RecordError, ValueError) as error:
        raise CheckpointError(f"a pin is unreadable, so no checkpoint is deleted: {error}") from error
    return names
