"""Seal a run on all of an attempt's processes, or on none."""

from __future__ import annotations

import logging
import time

from midstream_core.attempt.save_fence import FenceUnreadableError, read_fence, seal
from midstream_core.records import Command, Fence, RunPaths
from midstream_engine.processes.rendezvous import Processes

log = logging.getLogger(__name__)
RETRY_INTERVAL = 1.0  # seconds between two tries of a process that others wait for
_SEALED, _NOT_SEALED = b"sealed", b"not sealed"


def seal_together(paths: RunPaths, command: Command, step: int, processes: Processes, start: int = 0) -> Fence:
    """Give the run to the owner in ``command``, and seal older epochs at ``step``.

    ``start``: that of this attempt.

    All processes call it at the same boundary. Where some have sealed, no checkpoint of this attempt can be committed
    any more, so the others try until they have sealed too.

    Raises:
        FenceRejectedError: This process's fence is at the command's epoch or past it, for another owner or step.
        FenceUnreadableError: No process has sealed: the fence cannot be read or written. Training can continue.
    """
    failure = None
    try:
        fence = _seal(paths, command, step, start)
    except FenceUnreadableError as error:
        fence, failure = None, error
    if processes.client is not None:
        outcomes = processes.client.exchange(f"seal-{command.sequence}", _SEALED if fence else _NOT_SEALED)
        if failure is not None and _SEALED in outcomes:
            log.error("command %d: %s; other processes have sealed, so this one tries again", command.sequence, failure)
            while fence is None:
                time.sleep(RETRY_INTERVAL)
                fence = _try_to_seal(paths, command, step, start)
    if fence is None:
        assert failure is not None
        raise failure
    return fence


def _try_to_seal(paths: RunPaths, command: Command, step: int, start: int) -> Fence | None:
    try:
        return _seal(paths, command, step, start)
    except FenceUnreadableError as error:
        log.debug("%s", error)
        return None


def _seal(paths: RunPaths, command: Command, step: int, start: int) -> Fence:
    epoch, owner = command.epoch, command.owner
    try:
        return seal(paths, epoch=epoch, owner=owner, step=step, start=start)
    except OSError as error:  # a full disk, for example
        fence = read_fence(paths)
        if fence is not None and (fence.epoch, fence.owner, fence.sealed_step) == (epoch, owner, step):
            return fence  # it was written before the error
        raise FenceUnreadableError(f"{paths.fence}: not sealed: {error}") from error
