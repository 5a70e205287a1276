"""The fence and the pins of a run in its bucket, to which several hosts write.

A bucket has no lock. A fence replaces only the version that was read, so epochs never decrease. A checkpoint that is
committed between the check and a newer fence is accepted by no reader, because its epoch is too old.
"""

from __future__ import annotations

import json
import posixpath
import socket
import time

from midstream_engine.checkpoint.save_fence import FenceRejectedError, FenceUnreadableError
from midstream_engine.checkpoint.stores.run_bucket import RunBucket
from midstream_engine.object_store.bucket_client import ABSENT
from midstream_engine.records import Fence, Pin, RecordError, RunPaths, parse_json

FENCE = "fence.json"
PINS = "pins"


def run_prefix(paths: RunPaths) -> str:
    """Return ``SCHEME://bucket/prefix/runs/<run_id>``."""
    return posixpath.dirname(paths.checkpoints)


def _bucket(paths: RunPaths) -> RunBucket:
    return RunBucket(run_prefix(paths))


def read_fence(paths: RunPaths) -> tuple[Fence | None, str]:
    """Return the fence in the bucket and its version.

    These are None and ABSENT if there is none yet.

    Raises:
        FenceUnreadableError: The fence exists and cannot be read.
    """
    try:
        data, version = _bucket(paths).get(FENCE)
    except FileNotFoundError:
        return None, ABSENT
    where = f"{run_prefix(paths)}/{FENCE}"
    try:
        return Fence.from_json(parse_json(data, where), where), version
    except RecordError as error:
        raise FenceUnreadableError(f"{error}; nothing is committed until the fence can be read") from error


def check_fence(paths: RunPaths, local: Fence | None, epoch: int, step: int) -> None:
    """Check that the fence in the bucket accepts ``step-<step>`` of ``epoch``.

    If this host's own fence is newer, it replaces the one in the bucket. So a host that was unreachable during a
    migration finds at its next save that it no longer owns the run.

    Raises:
        FenceRejectedError: The fence in the bucket does not accept that step of that epoch.
        FenceUnreadableError: The fence in the bucket cannot be read.
    """
    while True:
        shared, version = read_fence(paths)
        if shared is not None and not shared.accepts(epoch, step):
            raise FenceRejectedError(
                f"run {paths.run_id} is owned by {shared.owner} under epoch {shared.epoch}, sealed at step "
                f"{shared.sealed_step} ({run_prefix(paths)}): step {step} of epoch {epoch} is not accepted; "
                "this attempt must end"
            )
        if local is None or (shared is not None and shared.epoch >= local.epoch):
            return
        try:
            text = json.dumps(local.to_json(), indent=1).encode()
            _bucket(paths).put(FENCE, text, version)
        except FileExistsError:
            continue  # another host was faster: read its fence
        return


def newest_fence(paths: RunPaths, local: Fence | None) -> Fence | None:
    """Return the fence with the higher epoch: this host's or the bucket's."""
    shared, _ = read_fence(paths)
    return max((fence for fence in (local, shared) if fence), key=lambda fence: fence.epoch, default=None)


def claim_attempt(paths: RunPaths, number: int) -> bool:
    """Reserve an attempt number for this host; False if another has it.

    The number is part of checkpoints' names.
    """
    data = json.dumps({"host": socket.gethostname(), "time": time.time()}).encode()
    try:
        _bucket(paths).put(f"attempts/{number:03d}.json", data, ABSENT)
    except FileExistsError:
        return False
    return True


def read_pins(paths: RunPaths, now: float) -> set[str]:
    """Return the names of the checkpoints that are pinned in the bucket at ``now``.

    ``now`` is in UTC seconds.

    Raises:
        RecordError: A pin is damaged.
    """
    found = set()
    for path in _bucket(paths).entries(f"{PINS}/"):
        if path.endswith("/"):  # the marker of the folder, as consoles and gcsfuse create it
            continue
        try:
            data, _ = _bucket(paths).get(path)
        except FileNotFoundError:
            continue  # another process removed it
        where = f"{run_prefix(paths)}/{path}"
        pin = Pin.from_json(parse_json(data, where), where)
        if pin.expires > now:
            found.add(pin.checkpoint)
    return found
