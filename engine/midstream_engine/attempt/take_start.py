"""Start number of an attempt: process 0 takes it, the others have the same."""

from __future__ import annotations

import dataclasses
import json
import logging

from midstream_core.attempt import start_number
from midstream_core.attempt.errors import FencedError
from midstream_core.attempt.save_fence import FenceRejectedError, read_fence
from midstream_core.attempt.status_file import StatusFile
from midstream_core.records import Fence, parse_json
from midstream_engine.checkpoint.loading.checkpoint_list import list_checkpoints, newest_complete
from midstream_engine.checkpoint.stores import bucket_fence
from midstream_engine.runtime.attempt_record import AttemptRecord

log = logging.getLogger(__name__)


def take_start(attempt: AttemptRecord, status: StatusFile, *, restores: bool) -> AttemptRecord:
    """Return the attempt with its start number: from here on no earlier start commits.

    ``restores``: a command names the checkpoint, so that a damaged one does not matter.

    Raises:
        FencedError: The run has passed to a later epoch.
        CheckpointError: The fence cannot be read, or the newest checkpoint is damaged.
    """
    try:
        fence = _take(attempt, restores)
    except FenceRejectedError as error:
        raise FencedError(str(error)) from None
    if fence is None:
        return attempt
    log.info("start %d of ownership %d", fence.start, fence.epoch)
    status.update(start=fence.start)
    return dataclasses.replace(attempt, start=fence.start)


def _take(attempt: AttemptRecord, restores: bool) -> Fence | None:
    paths, client = attempt.paths, attempt.processes.client
    bucket = bucket_fence if paths.store else None

    def newest(fence: Fence) -> str | None:
        if attempt.standby and fence.start == 0:
            return None  # the first start of the epoch: no checkpoint of it exists, and a list takes time
        if not restores:
            return newest_complete(paths, fence)
        accepted = [checkpoint.name for checkpoint in list_checkpoints(paths, fence) if checkpoint.accepted]
        return accepted[-1] if accepted else None

    if client is None:
        return start_number.take(paths, attempt.epoch, newest, bucket=bucket)
    # Hosts without a shared file system: the number is higher than that of each.
    here = read_fence(paths)
    answers = client.exchange("fences", b"null" if here is None else json.dumps(here.to_json()).encode())
    fences = [Fence.from_json(value, "fence") for text in answers if (value := parse_json(text, "fence")) is not None]
    newest_fence = max(fences, key=lambda fence: fence.order, default=None)

    def take() -> bytes:
        taken = start_number.take(paths, attempt.epoch, newest, newest_fence, bucket)
        return b"null" if taken is None else json.dumps(taken.to_json()).encode()

    value = parse_json(attempt.processes.broadcast("start", take), "start")
    if value is None:
        return None
    taken = Fence.from_json(value, "start")
    start_number.adopt(paths, taken)
    return taken
